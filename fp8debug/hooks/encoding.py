"""How rows of a table lie in a Parquet file, whether they come from a flush or from parts that are merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fp8debug.hooks.tables import ARROW_SCHEMAS
from fp8debug.storage import Storage

_ROW_GROUP_ROWS = {"histograms": 1 << 16, "values": 256}
"""A group has about ten histograms: who looks for those of one operand reads little besides."""
GROUP_BYTES = 16 << 20
"""Memory of the rows that wait for a row group of merged parts; long lists fill it before it has all its rows."""
_ENCODINGS = {
    "histograms": {  # keys are long runs of one number: the compression alone makes them as small, in half the time
        "segment": "PLAIN",
        "rank": "PLAIN",
        "seq": "PLAIN",
        "value": "BYTE_STREAM_SPLIT",
        "count": "DELTA_BINARY_PACKED",
    }
}


def row_group_rows(name: str) -> int:
    """Most rows of the table `name` in one row group."""
    return _ROW_GROUP_ROWS.get(name, 1 << 17)


def write_part(table: pa.Table, name: str, storage: Storage, part: str) -> None:
    """Write rows of the table `name` as the Parquet part `part`; raises OSError."""
    with storage.writing(part) as file:
        write_table(table, name, file)


def write_table(table: pa.Table, name: str, file: IO[bytes]) -> None:
    """Write rows of the table `name` to an open file."""
    pq.write_table(table, file, row_group_size=row_group_rows(name), **_options(name))


def write_batches(batches: Iterable[pa.RecordBatch], name: str, storage: Storage, part: str) -> int:
    """Write rows of the table `name` as they come, with one row group of GROUP_BYTES in memory; returns how many.

    The file outlives a failure of the machine: parts that it holds are deleted after it.

    Raises:
        OSError: it cannot be written; and what `batches` raises: then there is no such file.
    """
    schema, group_rows, n_rows = ARROW_SCHEMAS[name], row_group_rows(name), 0
    with storage.writing(part, durable=True) as file, pq.ParquetWriter(file, schema, **_options(name)) as writer:
        for group in _row_groups(batches, group_rows):
            writer.write_table(pa.Table.from_batches(group, schema), row_group_size=group_rows)
            n_rows += sum(batch.num_rows for batch in group)
            del group  # before the next one is filled
    return n_rows


def _row_groups(batches: Iterable[pa.RecordBatch], group_rows: int) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    n_rows = n_bytes = 0
    for batch in batches:
        while batch.num_rows:
            taken = batch.slice(0, group_rows - n_rows)
            batch = batch.slice(taken.num_rows)
            group.append(taken)
            n_rows, n_bytes = n_rows + taken.num_rows, n_bytes + taken.nbytes
            if n_rows == group_rows or n_bytes >= GROUP_BYTES:
                yield group
                group, n_rows, n_bytes = [], 0, 0
    if group:
        yield group


def _options(name: str) -> dict[str, Any]:
    encodings = _ENCODINGS.get(name)
    return {
        "compression": "zstd",
        "use_dictionary": ["counted"] if encodings else True,
        "column_encoding": encodings,
        "write_statistics": ["segment", "rank", "seq"] if encodings else True,
    }
