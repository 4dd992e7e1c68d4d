"""What a compaction came to, as text or JSON."""

from __future__ import annotations

from dataclasses import asdict

from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.runs import size
from fp8debug.cli.render.tables import escape
from fp8debug.cli.render.wording import count, shown_path
from fp8debug.hooks.compaction import Compacted
from fp8debug.storage import RunPath

COMPACT_VERSION = 1


def compact_text(path: RunPath, done: Compacted) -> str:
    """Files and bytes before and after, and what stays."""
    before = f"{count(done.n_files_before, 'file')}, {size(done.n_bytes_before)}"
    after = f"{count(done.n_files, 'file')}, {size(done.n_bytes)}"
    lines = [f"{escape(shown_path(path))}: {before} before; {after} now"]
    if done.n_files_left:
        lines.append(
            f"{count(done.n_files_left, 'file')} of those {'is' if done.n_files_left == 1 else 'are'} merged already "
            "and not read any more,\nbut somebody may have the run open; the next `fp8debug compact` deletes what is "
            "left"
        )
    lines += [f"not merged: {escape(reason)}" for reason in done.unreadable]
    return "\n".join(lines) + "\n"


def compact_json(path: RunPath, done: Compacted) -> str:
    """One object with the fields of `Compacted`."""
    return document_text({"compact_version": COMPACT_VERSION, "run": str(path), **asdict(done)})
