"""Several parts as one: the same rows in the same order, read and written in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from fp8debug.hooks.encoding import row_group_rows, write_batches
from fp8debug.hooks.tables import ARROW_SCHEMAS
from fp8debug.schema import TABLES
from fp8debug.storage import Storage

BATCH_ROWS = 1 << 13
BATCH_BYTES = 2 << 20
"""Most that is read at once, in rows and about in bytes: beside a row group of what is written, all that merging keeps
in memory."""


class UnreadablePart(Exception):
    """A part that is not merged, since it is no readable part of its table."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


def merge_parts(storage: Storage, table: str, sources: Sequence[str], target: str) -> int:
    """Write the rows of `sources` as the one file `target`, in the columns of today's schema; returns how many.

    Raises:
        UnreadablePart: one of them; there is no `target` then.
        OSError: the target cannot be written, or a source is gone.
    """
    n_rows = write_batches(_rows(storage, table, sources), table, storage, target)
    pa.default_memory_pool().release_unused()
    return n_rows


def _rows(storage: Storage, table: str, sources: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for name in sources:
        content = storage.address(name) if storage.path is None else pa.BufferReader(storage.read(name))
        try:
            # Buffers instead of whole column chunks: a chunk may be as large as the file.
            with pq.ParquetFile(content, pre_buffer=False, buffer_size=1 << 16) as file:
                yield from _conforming(file, table)
        except (FileNotFoundError, MemoryError):
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UnreadablePart(name, str(error).splitlines()[0]) from error


def _conforming(file: pq.ParquetFile, table: str) -> Iterator[pa.RecordBatch]:
    schema, found = ARROW_SCHEMAS[table], file.schema_arrow
    absent = {column.name for column in TABLES[table].columns if column.since > 1} - set(found.names)
    if sorted(found.names) != sorted(set(schema.names) - absent):
        raise ValueError(f"not a part of table {table}: it has other columns")
    for column in found:
        if column.type != schema.field(column.name).type:
            raise ValueError(f"not a part of table {table}: {column.name} is {column.type}")
    n_rows = 0
    for batch in file.iter_batches(_batch_rows(file.metadata, table), use_threads=False):
        n_rows += batch.num_rows
        columns = [_nulls(field, batch) if field.name in absent else batch.column(field.name) for field in schema]
        if any(column.null_count for field, column in zip(schema, columns, strict=True) if not field.nullable):
            raise ValueError(f"not a part of table {table}: a cell is missing")
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
    if n_rows != file.metadata.num_rows:
        raise ValueError(f"{n_rows} rows could be read of {file.metadata.num_rows}")


def _batch_rows(footer: pq.FileMetaData, table: str) -> int:
    n_bytes: int = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    row_bytes: int = max(1, n_bytes // max(1, footer.num_rows))
    return max(1, min(BATCH_ROWS, row_group_rows(table), BATCH_BYTES // row_bytes))


def _nulls(field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
    return pa.nulls(batch.num_rows, field.type)
