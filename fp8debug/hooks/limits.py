"""What keeps a capture within its means: what it does when the disk is slow, and how much it may write at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fp8debug.config import CaptureOptions
from fp8debug.hooks.budget import Budget
from fp8debug.hooks.dropping import Dropping
from fp8debug.hooks.observation import Observation
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.writer import PartWriter

WAITED_S = 1.0
"""Less than this nobody needs to be told of."""


class Limits:
    """The limits that the options set, for one rank."""

    def __init__(self, options: CaptureOptions, world: int, recorder: Recorder, say: Callable[[str], None]) -> None:
        self.dropping = Dropping(recorder.event_row, say) if options.on_full == "drop" else None
        """What to do when the disk is behind; None: wait."""
        self.most_bytes = None if options.max_bytes is None else max(1, options.max_bytes // world)
        """Of this rank's parts."""
        self._world = world
        self._recorder = recorder
        self._say = say

    def of(self, writer: PartWriter, observation: Observation) -> LimitsAtWork:
        """These limits on what is written and observed."""
        recorder = self._recorder

        def note(kind: str, message: str) -> None:
            recorder.event(kind, message, step=observation.clock.step)

        budget = Budget(writer.used, self._world, thin=observation.thin, note=note, say=self._say)
        writer.tell = lambda text: self._say(f"fp8debug: {text}")
        return LimitsAtWork(writer, recorder, budget, self.dropping)


class LimitsAtWork:
    """Looks after each step, and has the last word."""

    def __init__(self, writer: PartWriter, recorder: Recorder, budget: Budget, dropping: Dropping | None) -> None:
        self._writer = writer
        self._recorder = recorder
        self._dropping = dropping
        self._budget = budget
        self.look = budget.look
        writer.last_words = partial(self._last_words)

    @property
    def is_complete(self) -> bool:
        """Whether every row of every record was written."""
        return self._writer.used.n_refused == 0 and not (self._dropping is not None and self._dropping.problems)

    @property
    def problems(self) -> list[str]:
        """What the limits have cost, for the end of the run."""
        problems = [*self._budget.problems, *(self._dropping.problems if self._dropping is not None else [])]
        if self._writer.waited_s > WAITED_S:
            problems.append(
                f"the training waited {self._writer.waited_s:.0f} s for the disk; --on-full drop would not wait"
            )
        return problems

    def _last_words(self) -> Batch:
        """What has happened to the last batches themselves."""
        self._budget.look_refused()
        return self._recorder.take_batch(wait=False)
