"""A bundle's folder as one file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from fp8debug.errors import Fp8DebugError

TOP = "fp8debug-bundle"
"""The folder that the archive unpacks to."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16


def pack(folder: Path, target: Path) -> int:
    """Write all files of `folder` into the archive `target`, which appears when it is whole; returns its bytes.

    Files carry neither owners nor times.

    Raises:
        Fp8DebugError: it cannot be written.
    """
    temporary = target.with_name(f".{target.name}.tmp{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "w") as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(f"{TOP}/{path.relative_to(folder).as_posix()}", _EPOCH)
                entry.external_attr = _MODE
                # Parquet is compressed already.
                entry.compress_type = zipfile.ZIP_STORED if path.suffix == ".parquet" else zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
        os.replace(temporary, target)
    except OSError as error:
        raise Fp8DebugError(f"cannot write {target}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target.stat().st_size
