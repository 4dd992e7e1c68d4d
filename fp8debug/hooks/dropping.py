"""What goes first when the disk is slower than the training, and is not to be waited for: said, counted, recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fp8debug.hooks.flight import thinned
from fp8debug.hooks.tables import Batch
from fp8debug.schema import TABLES

_COLUMNS = TABLES["tensors"].column_names
_STEP, _SAMPLED = _COLUMNS.index("step"), _COLUMNS.index("sampled")
_STEP_SAMPLED = TABLES["steps"].column_names.index("sampled")
_ALWAYS = ("events", "evals")

EventRow = Callable[[str, str, int | None], tuple[Any, ...]]
"""Makes a row of the table `events` of kind, message and step."""


@dataclass(slots=True)
class _Tally:
    """Records that lost something, and their steps."""

    what: str
    n_records: int = 0
    steps: set[int] = field(default_factory=set)

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        self.n_records += len(rows)
        self.steps |= {row[_STEP] for row in rows}
        if self.steps:
            self.steps = {min(self.steps), max(self.steps)}

    @property
    def text(self) -> str:
        records = "1 record" if self.n_records == 1 else f"{self.n_records:,} records"
        first, last = min(self.steps), max(self.steps)
        of = f"step {first}" if first == last else f"steps {first} to {last}"
        return f"{records} of {of}: {self.what}, since the disk was slower than the training"


_DETAIL, _WHOLE = "errors, histograms and details dropped", "dropped whole"


class Dropping:
    """Makes batches small, and tells of it in the first one that is written afterwards."""

    def __init__(self, event: EventRow, say: Callable[[str], None]) -> None:
        self._event = event
        self._say = say
        self._untold = {what: _Tally(what) for what in (_DETAIL, _WHOLE)}
        self._all = {what: _Tally(what) for what in (_DETAIL, _WHOLE)}
        self._kept = Batch()
        self._said = False

    @property
    def problems(self) -> list[str]:
        """What was lost in all, a sentence each; for the end of the run."""
        return [f"{tally.text} (--on-full drop)" for tally in self._all.values() if tally.n_records]

    def drop_detail(self, batch: Batch) -> Batch:
        """Take out what sampled steps have besides health and scales, raw values too."""
        batch.finish()
        rows = [row for row in batch.rows["tensors"].rows if row[_SAMPLED]]
        self._note(_DETAIL, rows)
        small = thinned(batch)
        small.rows["values"] = Batch().rows["values"]
        for row in batch.rows["steps"].deferred():
            small.rows["steps"].append_deferred(_unsampled(row))
        return small

    def drop_whole(self, batch: Batch) -> None:
        """Take out everything but events and scores, which wait here for the next batch."""
        batch.finish()
        self._note(_WHOLE, batch.rows["tensors"].rows)
        for name in _ALWAYS:
            self._kept.rows[name].extend(batch.rows[name])

    def tell(self, batch: Batch) -> None:
        """Add to a batch that will be written what was dropped before it or of it."""
        self._kept, kept = Batch(), self._kept
        batch.extend(kept)
        for what, tally in self._untold.items():
            if tally.n_records:
                batch.rows["events"].append(self._event("dropped", tally.text, min(tally.steps)))
                self._untold[what] = _Tally(what)

    def _note(self, what: str, rows: list[tuple[Any, ...]]) -> None:
        self._untold[what].add(rows)
        self._all[what].add(rows)
        if rows and not self._said:
            self._said = True
            self._say(
                "fp8debug: the disk is slower than the training: details of sampled steps are dropped from here on "
                "where the queue is full (--on-full drop); events say of which"
            )


def _unsampled(row: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        cells = row()
        return (*cells[:_STEP_SAMPLED], False, *cells[_STEP_SAMPLED + 1 :])

    return make
