"""Rows waiting to be written: one buffer a table, in the schema's column order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fp8debug.schema import SCHEMA_VERSION, TABLES, Table

_NUMBER_BYTES = 28  # a Python number that is no small integer
_LIST_BYTES = 112


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type that a schema word such as `list<float32>` stands for."""
    if text.startswith("list<"):
        return pa.list_(pa.type_for_alias(text[5:-1]))
    return pa.type_for_alias(text)


def arrow_schema(table: Table) -> pa.Schema:
    """Arrow schema of `table`; every field carries its meaning and unit as metadata."""
    # No cell of a histogram is ever missing, and a writer that knows it has a fifth less to do.
    may_be_null = table.name != "histograms"
    fields = [
        pa.field(c.name, arrow_type(c.type), may_be_null, {"meaning": c.meaning, "unit": c.unit}) for c in table.columns
    ]
    return pa.schema(fields, metadata={"fp8debug.table": table.name, "fp8debug.schema_version": str(SCHEMA_VERSION)})


ARROW_SCHEMAS = {name: arrow_schema(table) for name, table in TABLES.items()}


class RowBuffer:
    """Rows of one table as plain tuples."""

    def __init__(self, table: str) -> None:
        self._schema = ARROW_SCHEMAS[table]
        self._row_bytes = _row_bytes(TABLES[table])
        self._rows: list[tuple[Any, ...] | Callable[[], tuple[Any, ...]]] = []
        self._late: list[Callable[[], Iterable[tuple[Any, ...]]]] = []
        self.array_bytes = 0
        """Memory of the arrays that rows refer to, in bytes."""

    @property
    def column_names(self) -> list[str]:
        """Names in the order that rows must have."""
        return list(self._schema.names)

    def append(self, row: tuple[Any, ...]) -> None:
        """Add one row; its cells are in the schema's column order."""
        self._rows.append(row)

    def append_deferred(self, row: Callable[[], tuple[Any, ...]]) -> None:
        """Add a row that is made on the writer's thread, where waiting for a device hurts nobody."""
        self._rows.append(row)

    def append_late(self, rows: Callable[[], Iterable[tuple[Any, ...]]]) -> None:
        """Add rows of which not even the number is known before the writer's thread makes them."""
        self._late.append(rows)

    @property
    def n_bytes(self) -> int:
        """Rough memory held, in bytes."""
        return len(self._rows) * self._row_bytes + self.array_bytes

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows that are made already."""
        return [row for row in self._rows if not callable(row)]

    def deferred(self) -> list[Callable[[], tuple[Any, ...]]]:
        """Rows that the writer's thread is to make."""
        return [row for row in self._rows if callable(row)]

    def extend(self, other: RowBuffer) -> None:
        """Add all rows of `other`, a buffer of the same table."""
        self._rows += other._rows
        self._late += other._late
        self.array_bytes += other.array_bytes

    def to_arrow(self) -> pa.Table | None:
        """The rows as an Arrow table; None when there is none."""
        made = [row() if callable(row) else row for row in self._rows] + [row for late in self._late for row in late()]
        if not made:
            return None
        columns = zip(*made, strict=True)
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, self._schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _row_bytes(table: Table) -> int:
    """Rough memory of one row: the tuple and its numbers; texts are shared between rows."""
    sizes = {"string": 0, "bool": 0}
    return 64 + sum(
        8 + (_LIST_BYTES if c.type.startswith("list<") else sizes.get(c.type, _NUMBER_BYTES)) for c in table.columns
    )


class HistogramBuffer:
    """Histograms as arrays: (segment, rank, seq) once a record, values and counts in long form."""

    def __init__(self) -> None:
        self._schema = ARROW_SCHEMAS["histograms"]
        self._keys: list[tuple[int, int, int, str]] = []
        self._values: list[npt.NDArray[np.float32]] = []
        self._counts: list[npt.NDArray[np.int64]] = []
        self.n_bytes = 0

    def append(
        self,
        key: tuple[int, int, int, str],
        values: npt.NDArray[np.float32],
        counts: npt.NDArray[np.int64],
    ) -> None:
        self._keys.append(key)
        self._values.append(values)
        self._counts.append(counts)
        self.n_bytes += values.nbytes + counts.nbytes

    def extend(self, other: HistogramBuffer) -> None:
        """Add all histograms of `other`."""
        self._keys += other._keys
        self._values += other._values
        self._counts += other._counts
        self.n_bytes += other.n_bytes

    def to_arrow(self) -> pa.Table | None:
        """All histograms as one long Arrow table; None when there is none."""
        if not self._keys:
            return None
        lengths = np.array([len(v) for v in self._values])
        segment, rank, seq, counted = (list(c) for c in zip(*self._keys, strict=True))
        arrays = [
            pa.array(_repeat(np.array(segment, np.int32), lengths)),
            pa.array(_repeat(np.array(rank, np.int32), lengths)),
            pa.array(_repeat(np.array(seq, np.int64), lengths)),
            _repeat_strings(counted, lengths),
            pa.array(np.concatenate(self._values)),
            pa.array(np.concatenate(self._counts)),
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _repeat(numbers: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    is_one = bool((numbers == numbers[0]).all())
    return np.full(int(lengths.sum()), numbers[0]) if is_one else np.repeat(numbers, lengths)


def _repeat_strings(words: Sequence[str], lengths: npt.NDArray[np.int64]) -> pa.Array:
    if len(set(words)) == 1:
        return pa.array([words[0]]).take(pa.array(np.zeros(int(lengths.sum()), np.int8)))
    return pa.array(np.repeat(np.array(words, dtype=object), lengths), type=pa.string())


class Batch:
    """What one flush hands to the writer: a buffer for each table."""

    def __init__(self) -> None:
        self.rows = {name: RowBuffer(name) for name in TABLES if name != "histograms"}
        self.histograms = HistogramBuffer()
        self._finish: Callable[[], None] | None = None
        self._missing_bytes = 0

    def finish_by(self, make: Callable[[], None], n_bytes: int) -> None:
        """Have `make` add rows that are still missing, on the writer's thread, before anything is made of the batch.

        Args:
            n_bytes: rough memory that they will take, in bytes.
        """
        self._finish, self._missing_bytes = make, n_bytes

    def finish(self) -> None:
        """Add the rows that are still missing; may wait for a device."""
        make, self._finish = self._finish, None
        if make is not None:
            make()
            self._missing_bytes = 0

    @property
    def n_bytes(self) -> int:
        """Rough memory held, in bytes."""
        return self.histograms.n_bytes + sum(b.n_bytes for b in self.rows.values()) + self._missing_bytes

    def extend(self, other: Batch) -> None:
        """Add everything that `other` holds."""
        other.finish()
        for name, buffer in other.rows.items():
            self.rows[name].extend(buffer)
        self.histograms.extend(other.histograms)

    def take_tables(self) -> Iterator[tuple[str, pa.Table]]:
        """The non-empty tables by name, one at a time; the batch gives up the rows of each, so none is there twice."""
        self.finish()
        for name in list(self.rows):
            table = self.rows.pop(name).to_arrow()
            if table is not None:
                yield name, table
        histograms, self.histograms = self.histograms, HistogramBuffer()
        if (table := histograms.to_arrow()) is not None:
            del histograms
            yield "histograms", table

    def to_arrow(self) -> dict[str, pa.Table]:
        """The non-empty tables."""
        self.finish()
        tables = {name: buffer.to_arrow() for name, buffer in self.rows.items()}
        tables["histograms"] = self.histograms.to_arrow()
        return {name: table for name, table in tables.items() if table is not None}
