"""The file that `--html` writes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8debug.cli.sink import Sink, check_target
from fp8debug.errors import UsageError
from fp8debug.rundir import RunDir
from fp8debug.storage import RunPath, resolved

_MARK = b'<meta name="generator" content="fp8debug '
_MARK_WITHIN_BYTES = 4096
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class HtmlFile:
    """Where a page goes; no path: standard output."""

    path: Path | None

    @classmethod
    def from_option(cls, given: str, shown: Sequence[str | os.PathLike[str]]) -> HtmlFile:
        """Check the value of `--html` before anything runs.

        Args:
            given: a file, `-` for standard output; empty: a file in the current folder.
            shown: runs, or files of curves, that are on the page: that file is named after them.

        Raises:
            UsageError: a folder, a file that is no page of fp8debug, one inside of a run.
        """
        if given == "-":
            return cls(None)
        paths = [resolved(one) for one in shown]
        path = Path(given or f"{'-'.join(map(_name, paths))[:_LONGEST_NAME]}.html")
        refuse_folder(given)
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise UsageError(f"--html {path} is no file; expected a file name, or - for standard output")
        if path.exists() and not _is_page(path):
            raise UsageError(f"--html {path} exists and is no page of fp8debug: it stays; give another name")
        folders = [RunDir(one) for one in paths if isinstance(one, Path) and one.is_dir()]
        for run in (None, *folders):
            check_target(path, force=True, outside=run, option="--html")
        return cls(path)

    def write(self, page: str) -> None:
        """Write the page; of a file, print its name.

        Raises:
            Fp8DebugError: it cannot be written.
        """
        with Sink("html", self.path).opened() as file:
            file.write(page.encode("utf-8"))
        if self.path is not None:
            from fp8debug.cli.render.stream import write_stdout
            from fp8debug.cli.render.tables import escape

            write_stdout((escape(str(self.path)) if sys.stdout.isatty() else str(self.path)) + "\n")


def refuse_folder(given: str) -> None:
    """Say what was meant by `--html RUN_DIR`, which takes the run for the file.

    Raises:
        UsageError: it is a folder.
    """
    if given and Path(given).is_dir():
        raise UsageError(f"--html {given} is a folder; expected a file name, or --html at the end of the line")


def _name(path: RunPath) -> str:
    """A run is called what its folder is, a curve what its file is without the ending."""
    return path.stem if isinstance(path, Path) and path.is_file() else path.name


def _is_page(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _MARK in file.read(_MARK_WITHIN_BYTES)
    return False
