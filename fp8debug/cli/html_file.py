"""The file that `--html` writes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fp8debug.cli.sink import Sink, check_target
from fp8debug.errors import UsageError

if TYPE_CHECKING:
    from fp8debug.rundir import RunDir

_MARK = b'<meta name="generator" content="fp8debug '
_MARK_WITHIN_BYTES = 4096
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class HtmlFile:
    """Where a page goes; no path: standard output."""

    path: Path | None

    @classmethod
    def from_option(cls, given: str, names: Sequence[str], outside: RunDir | None = None) -> HtmlFile:
        """Check the value of `--html` before anything runs.

        Args:
            given: a file, `-` for standard output; empty: a file in the current folder.
            names: of the runs, of which that file's name is made.
            outside: a run directory that the file must not be in.

        Raises:
            UsageError: a folder, a file that is no page of fp8debug, one inside of the run.
        """
        if given == "-":
            return cls(None)
        path = Path(given or f"{'-'.join(names)[:_LONGEST_NAME]}.html")
        if path.is_dir():
            raise UsageError(f"--html {path} is a folder; expected a file name, or --html at the end of the line")
        if path.exists() and not _is_page(path):
            raise UsageError(f"--html {path} exists and is no page of fp8debug: it stays; give another name")
        check_target(path, force=True, outside=outside, option="--html")
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


def _is_page(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _MARK in file.read(_MARK_WITHIN_BYTES)
    return False
