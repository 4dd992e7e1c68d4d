"""The tables of a bundle: copied part by part, texts scrubbed, cut to a window of steps where they are too large."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb

from fp8debug.analysis.bundle.scrub import Scrubber
from fp8debug.analysis.parts import quote_text
from fp8debug.analysis.run import Run
from fp8debug.rundir import RunDir
from fp8debug.schema import TABLES

LEFT_OUT = ("values", "wsample")
"""Tables of raw values."""
_LARGE = ("tensors", "scales", "errors", "blocks", "channels", "gemms", "statistics")
_SMALL = ("steps", "evals", "events")
_TEXTS = {"events": ("message",), "tensors": ("status",), "evals": ("task",)}
_WINDOWS = (None, 500, 100, 20, 5)
"""Sampled steps kept on both sides of the anomaly, wider ones first; None: all."""

_SAMPLED = "select distinct step from stored.tensors where sampled order by step"
_CHOSEN = """
create or replace temp table chosen_records as
select segment, rank, seq
from stored.tensors as t
left join bundle_operands as o on t.layer = o.layer and (o.tensor is null or o.tensor = t.tensor)
where t.sampled and t.step between $first and $last and (o.layer is not null or $takes_all)
qualify dense_rank() over (order by coalesce(o.place, 0), abs(t.step - $step), t.step, segment, rank, seq) <= $n
"""


class TableCopy:
    """Copies tables of an open run into the folder of another."""

    def __init__(self, run: Run, scrubber: Scrubber, target: RunDir) -> None:
        self._con = run.prepare("select 1")
        self._scrubber = scrubber
        self._target = target
        self._steps = [step for (step,) in self._con.execute(_SAMPLED).fetchall()]
        self._mapped = {
            (table, column)
            for table in (*_SMALL, *_LARGE)
            for column in ("layer", *_TEXTS.get(table, ()))
            if column in TABLES[table].column_names and self._map(table, column)
        }

    def copy(self, step: int | None, limit_bytes: int) -> str | None:
        """Copy everything but histograms, all steps or as many as fit.

        Returns:
            What was cut, in words.
        """
        self._write(_SMALL, None)
        n_windows = len(_WINDOWS) if step is not None else 1
        for width in _WINDOWS[:n_windows]:
            window = None if width is None or step is None else self.window(step, width)
            self._write(_LARGE, window)
            if self.n_bytes <= limit_bytes:
                break
        if window is None:
            return None
        return (
            f"{', '.join(_LARGE)} hold steps {window[0]} to {window[1]} alone, {width} sampled steps on both sides of "
            "the anomaly: all of them are larger than the limit"
        )

    def copy_histograms(
        self, step: int, operands: Sequence[tuple[str, str | None]], n_steps: int, n_records: int
    ) -> int:
        """Copy the histograms around `step`, those of `operands` alone where there are any; returns of how many."""
        first, last = self.window(step, n_steps)
        self._con.execute("create or replace temp table bundle_operands (place int, layer varchar, tensor varchar)")
        if operands:
            rows = [(place, layer, tensor) for place, (layer, tensor) in enumerate(operands)]
            self._con.executemany("insert into bundle_operands values (?, ?, ?)", rows)
        about = {"first": first, "last": last, "step": step, "n": n_records, "takes_all": not operands}
        self._con.execute(_CHOSEN, about)
        self._copy("histograms", "semi join chosen_records using (segment, rank, seq)")
        return int(self._con.execute("select count(*) from chosen_records").fetchall()[0][0])

    def window(self, step: int, n_steps: int) -> tuple[int, int]:
        """First and last step of `n_steps` sampled steps on both sides of `step`."""
        before = [s for s in self._steps if s < step][-n_steps:]
        after = [s for s in self._steps if s > step][:n_steps]
        return min([step, *before]), max([step, *after])

    @property
    def n_bytes(self) -> int:
        """Bytes written so far."""
        return sum(part.stat().st_size for part in self._target.folder.rglob("part-*.parquet"))

    def _write(self, tables: Iterable[str], window: tuple[int, int] | None) -> None:
        for table in tables:
            self._copy(table, "" if window is None else f"where step between {window[0]} and {window[1]}")

    def _copy(self, table: str, condition: str) -> None:
        columns = [column for name, column in self._mapped if name == table]
        replaced = ", ".join(
            f"coalesce((select new from map_{table}_{c} as m where m.old = t.{c}), t.{c}) as {c}" for c in columns
        )
        select = f"select * {f'replace ({replaced})' if replaced else ''} from stored.{table} as t {condition}"
        for (rank,) in self._con.execute(f"select distinct rank from ({select}) where rank is not null").fetchall():
            path = self._target.part_path(table, rank, 0)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = f"select * from ({select}) where rank = {int(rank)}"
            self._export(part, path)

    def _export(self, query: str, path: Path) -> None:
        self._con.execute(f"copy ({query}) to {quote_text(str(path))} (format parquet, compression zstd)")

    def _map(self, table: str, column: str) -> bool:
        """Make the table of texts that are told otherwise; False: none is."""
        found = f"select distinct {column} from stored.{table} where {column} is not null"
        replace = self._scrubber.layer if column == "layer" else self._scrubber.text
        texts = [(old, replace(old)) for (old,) in self._con.execute(found).fetchall()]
        changed = [(old, new) for old, new in texts if old != new]
        if changed:
            self._con.execute(f"create or replace temp table map_{table}_{column} (old varchar, new varchar)")
            self._con.executemany(f"insert into map_{table}_{column} values (?, ?)", changed)
        return bool(changed)


def texts_of(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Every text of the run that a process wrote freely."""
    columns = [(table, column) for table, columns in _TEXTS.items() for column in columns]
    queries = (f"select distinct {c} from stored.{t} where {c} is not null" for t, c in columns)
    return [text for query in queries for (text,) in con.execute(query).fetchall()]
