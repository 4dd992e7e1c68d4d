"""What an import came to, as text or JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.tables import escape, wrap
from fp8debug.cli.render.wording import count, step_range, with_full_stop

if TYPE_CHECKING:
    from fp8debug.analysis.importing import Imported

IMPORT_VERSION = 1


def imported_text(done: Imported, run_path: str, *, width: int = 80) -> str:
    """Where the run is, what is in it, and what must be known of it."""
    return "\n".join(_lines(done, run_path, width)) + "\n"


def _lines(done: Imported, run_path: str, width: int) -> Iterator[str]:
    yield f"Wrote {escape(run_path)}"
    ranks = f" of {count(len(done.ranks), 'rank')}" if len(done.ranks) > 1 else ""
    yield from wrap(
        f"{count(done.n_numbers, 'number')} from {count(len(done.files), 'log')}{ranks}: "
        f"{', '.join(map(escape, done.statistics))} of {', '.join(done.tensors)} in {count(done.n_layers, 'layer')}, "
        f"{count(done.n_steps, 'logged step')}, {step_range(done.first_step, done.last_step)}",
        width,
        hanging="  ",
    )
    for note in done.notes:
        yield from wrap(f"- {with_full_stop(escape(note.message))}", width, hanging="  ", break_long=True)
    yield f"Next: fp8debug report {shlex.quote(escape(run_path))}"


def imported_json(done: Imported) -> str:
    """One JSON object and a newline."""
    return document_text({"import_version": IMPORT_VERSION, **asdict(done)})
