"""How much of a limit the parts of one rank take; beyond it nothing is written but events."""

from __future__ import annotations

import io

import pyarrow as pa

from fp8debug.hooks.encoding import write_table
from fp8debug.hooks.tiers import MERGED_BYTES
from fp8debug.schema import TABLES
from fp8debug.storage import Storage

_EXEMPT = "events"


class UsedBytes:
    """Bytes of the parts of a rank, those of earlier segments included, events apart."""

    def __init__(self, storage: Storage, rank: int, most_bytes: int | None) -> None:
        self._storage = storage
        self._rank = rank
        self.most = most_bytes
        self.n_bytes = 0
        self.n_refused = 0
        """Rows that were not written."""

    @property
    def may_merge(self) -> bool:
        """Whether what merging takes on top, until old files have gone, is within the limit."""
        return self.most is None or self.n_bytes + min(self.n_bytes, MERGED_BYTES) <= self.most

    def is_limited(self, table: str) -> bool:
        """Whether parts of the table count."""
        return self.most is not None and table != _EXEMPT

    def measure(self) -> None:
        """Look at what is there; raises OSError."""
        if self.most is None:
            return
        names = [name for table in TABLES if table != _EXEMPT for name in self._names(table)]
        self.n_bytes = sum(map(self._storage.size, names))

    def write(self, table: pa.Table, name: str, part: str) -> bool:
        """Write rows of the limited table `name` as `part` unless that is beyond the limit; returns whether.

        Raises:
            OSError: it cannot be written.
        """
        encoded = io.BytesIO()  # how large it is shows only when it is encoded
        write_table(table, name, encoded)
        if self.most is not None and self.n_bytes + encoded.tell() > self.most:
            self.n_refused += table.num_rows
            return False
        with self._storage.writing(part) as file:
            file.write(encoded.getbuffer())
        self.n_bytes += encoded.tell()
        return True

    def _names(self, table: str) -> list[str]:
        return self._storage.names(f"{table}/rank={self._rank}")
