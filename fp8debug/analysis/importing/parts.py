"""Rows of imported numbers as Parquet parts of a run."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fp8debug.analysis.importing.names import GivenName
from fp8debug.analysis.importing.steps import Record, Step
from fp8debug.analysis.importing.tally import Tally
from fp8debug.rundir import RunDir
from fp8debug.schema import RECORD_KEY, SCHEMA_VERSION, TABLES, Table

FLUSH_ROWS = 1 << 17
_LARGEST_FLOAT32 = 3.4028234663852886e38
_BACKWARD = ("dy", "dx", "dw")
_COLUMNS = {name: table.column_names for name, table in TABLES.items()}
_KEY = tuple(column.name for column in RECORD_KEY)


def arrow_schema(table: Table) -> pa.Schema:
    """As the capture writes a table: every field with its meaning and unit."""
    fields = [
        pa.field(c.name, _arrow_type(c.type), True, {"meaning": c.meaning, "unit": c.unit}) for c in table.columns
    ]
    return pa.schema(fields, metadata={"fp8debug.table": table.name, "fp8debug.schema_version": str(SCHEMA_VERSION)})


def _arrow_type(word: str) -> pa.DataType:
    return pa.list_(pa.type_for_alias(word[5:-1])) if word.startswith("list<") else pa.type_for_alias(word)


class Parts:
    """Collects rows and writes them, one part a table and rank at a time."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._rows: dict[tuple[str, int], list[tuple[Any, ...]]] = defaultdict(list)
        self._n_rows = 0
        self._next_part: dict[tuple[str, int], int] = defaultdict(int)
        self._next_seq: dict[int, int] = defaultdict(int)
        self.written: list[str] = []
        """Names of the parts, below the run directory."""

    def add_step(self, step: Step, tally: Tally) -> None:
        """Add what was logged in a step; raises OSError when the parts that are full cannot be written."""
        for rank in step.ranks:
            self.add("steps", rank, segment=step.segment, step=step.step, sampled=False)
        for record in step.records:
            self._add_record(step, record, tally)
        if self._n_rows >= FLUSH_ROWS:
            self.flush()

    def _add_record(self, step: Step, record: Record, tally: Tally) -> None:
        layer, tensor = record.operand
        seq = self._next_seq[record.rank]
        self._next_seq[record.rank] += 1
        tally.add_operand(layer, tensor, n_uses=len(record.kept) if record.call else 0)
        direction = "backward" if tensor in _BACKWARD else "forward"
        key = (step.segment, step.step, 0, record.call, direction, record.rank, layer, tensor, seq)
        health = {"row_class": "all", "sampled": False, "status": "imported", "amax": amax_of(record)}
        self.add("tensors", record.rank, **dict(zip(_KEY, key, strict=True)), **health)
        rows = self._rows["statistics", record.rank]
        for name in record.kept:
            text = record.given[name]
            value, at_floor = float(text), is_at_floor(name, text)
            tally.add_number(name, value, at_floor=at_floor)
            value = value / 100 if name.is_share else value
            rows.append(
                (*key, name.recipe, name.fmt, name.statistic, value, at_floor, name.columnwise, name.given_name)
            )
        self._n_rows += len(record.kept)

    def add(self, table: str, rank: int, /, **cells: Any) -> None:
        """Add a row; columns not given are NULL."""
        cells["rank"] = rank
        self._rows[table, rank].append(tuple(map(cells.get, _COLUMNS[table])))
        self._n_rows += 1

    def flush(self) -> None:
        """Write all rows that wait; raises OSError."""
        for (table, rank), rows in self._rows.items():
            schema = arrow_schema(TABLES[table])
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
            part = self._run.part_name(table, rank, self._next_part[table, rank])
            self._next_part[table, rank] += 1
            with self._run.storage.writing(part) as file:
                pq.write_table(pa.Table.from_arrays(arrays, schema=schema), file, compression="zstd")
            self.written.append(part)
        self._rows.clear()
        self._n_rows = 0


def amax_of(record: Record) -> float | None:
    """The largest magnitude, where the log has it, or smallest and largest value; None: not, or not a number, or too
    small for four decimals."""
    given = {name.statistic: text for name, text in record.given.items() if name.recipe is None}
    if "amax" in given:
        texts = [given["amax"]]
    elif "min" in given and "max" in given:
        texts = [given["min"], given["max"]]
    else:
        return None
    magnitudes = [abs(float(text)) for text in texts]
    known = all(map(math.isfinite, magnitudes)) and 0 < max(magnitudes) <= _LARGEST_FLOAT32
    return max(magnitudes) if known else None


def is_at_floor(name: GivenName, text: str) -> bool:
    """Whether the number is printed as zero and may be another one; a code is a whole number, so it is zero."""
    return text.lstrip("-") == "0.0000" and not name.is_code
