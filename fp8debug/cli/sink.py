"""Where the answer of `fp8debug sql` goes and in which format."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.rundir import RunDir
from fp8debug.storage import resolved

FORMATS = ("table", "csv", "json", "jsonl", "parquet")


@dataclass(frozen=True, slots=True)
class Sink:
    """A format and a file, or standard output."""

    format: str
    path: Path | None = None

    @classmethod
    def from_options(cls, name: str | None, output: str | None, *, force: bool, outside: RunDir | None) -> Sink:
        """Check `--format`, `-o` and `--force` before anything runs.

        Raises:
            UsageError: an unknown format, Parquet for a terminal, or a file that must not be written.
        """
        if name is not None and name not in FORMATS:
            raise UsageError(f"--format {name!r}: expected one of {', '.join(FORMATS)}")
        if output is None:
            if name == "parquet" and sys.stdout.isatty():
                raise UsageError("--format parquet would fill the terminal with bytes; add -o FILE or a pipe")
            return cls(name or "table")
        path = Path(output)
        check_target(path, force=force, outside=outside)
        ending = path.suffix.removeprefix(".").lower()
        return cls(name or (ending if ending in FORMATS else "table"), path)

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write text, a line at a time."""
        if self.path is None:
            from fp8debug.cli.render.stream import write_stdout
            from fp8debug.cli.render.tables import escape

            # A terminal would obey the escape sequences in a name; a pipe gets the data as they are.
            shown = map(escape, lines) if sys.stdout.isatty() else lines
            for line in shown:
                write_stdout(line + "\n")
            return
        with self.opened() as file:
            for line in lines:
                file.write(line.encode("utf-8", "backslashreplace") + b"\n")

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, which appears under its name only when it is whole; or the bytes of standard output."""
        if self.path is None:
            sys.stdout.flush()
            yield sys.stdout.buffer
            return
        target = self.path.resolve()  # a link stays one
        temporary = target.with_name(f".{target.name}.tmp{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                yield file
            os.replace(temporary, target)
        except OSError as error:
            raise Fp8DebugError(f"cannot write {self.path}: {error}") from error
        finally:
            with contextlib.suppress(OSError):  # it would hide why the file could not be made
                temporary.unlink(missing_ok=True)


def check_target(path: Path, *, force: bool, outside: RunDir | None, option: str = "-o") -> None:
    """Refuse a file that must not be written; `option` named it.

    Raises:
        UsageError: a folder, a device or pipe, a file that exists already (unless `force`), one inside of the run
            `outside`.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; expected a file name")
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} {path} is a device, a pipe or a socket, which would be replaced; expected a file")
    if path.exists() and not force:
        raise UsageError(f"{option} {path} exists already; add --force to overwrite it, or give another name")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    if outside is not None and resolved(outside.path) in path.resolve().parents:
        raise UsageError(f"{option} {path} is inside the run directory, which is only read; give a name outside it")
