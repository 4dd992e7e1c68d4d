"""How much memory DuckDB may take for a run, and where it puts what does not fit."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from pathlib import Path

import duckdb

from fp8debug.analysis.parts import quote_text
from fp8debug.errors import UsageError

DEFAULT_BYTES = 4 * 10**9
"""Where nobody says: a reader beside a training leaves the machine to it. On a small machine 80 % of that."""
LEAST_BYTES = 32 * 10**6
"""With less DuckDB cannot hold what one thread works on."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int:
    """Bytes of a text such as `500MB`, `2GB` or `1.5GiB`.

    Raises:
        UsageError: it is none, or less than DuckDB can work with.
    """
    n_bytes = _bytes(text)
    if n_bytes is None:
        raise UsageError(f"memory limit {text!r}: expected a number and a unit, such as 500MB, 2GB or 1.5GiB")
    if n_bytes < LEAST_BYTES:
        raise UsageError(f"memory limit {text!r}: expected at least {LEAST_BYTES // 10**6}MB")
    return n_bytes


def _bytes(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    return int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[(found[2] or "").upper()])


def confine(con: duckdb.DuckDBPyConnection, memory_limit: str | None) -> None:
    """Set what the connection may take, and where it spills.

    DuckDB makes that folder when it needs it, and removes it when the connection is closed.

    Args:
        con: a connection that has computed nothing yet.
        memory_limit: as for `parse_size`; None: `DEFAULT_BYTES`, or DuckDB's default where that is less.

    Raises:
        UsageError: as `parse_size`.
    """
    if memory_limit is not None:
        n_bytes = parse_size(memory_limit)
    else:
        own = con.execute("select current_setting('memory_limit')").fetchall()[0][0]
        n_bytes = min(DEFAULT_BYTES, _bytes(own) or DEFAULT_BYTES)
    con.execute(f"set memory_limit = '{n_bytes}B'")
    # Beside the process number a random one: a process may have several runs open, and leave a folder when killed.
    folder = Path(tempfile.gettempdir()) / f"fp8debug-spill-{os.getpid()}-{secrets.token_hex(4)}"
    con.execute(f"set temp_directory = {quote_text(str(folder))}")
