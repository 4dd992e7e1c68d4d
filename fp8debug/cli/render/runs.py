"""The list of runs as text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fp8debug.analysis.catalog import RunEntry
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.tables import columns, escape
from fp8debug.storage import RunPath

LIST_VERSION = 1
_HEADER = ("created", "status", "steps", "layers", "size", "script", "path")


def runs_table(entries: Sequence[RunEntry]) -> str:
    """One line a run, newest last; empty without runs."""
    if not entries:
        return ""
    rows = [_HEADER, *(_row(entry) for entry in entries)]
    lines = columns(rows, right=(False, False, True, True, True))
    lines += [f"{escape(e.path)}: {escape(e.problem)}" for e in entries if e.status == "unreadable" and e.problem]
    return "\n".join(lines) + "\n"


def runs_json(folder: RunPath, entries: Sequence[RunEntry]) -> str:
    """One object; every run with the fields of `RunEntry`."""
    document = {"list_version": LIST_VERSION, "folder": str(folder), "runs": [asdict(entry) for entry in entries]}
    return document_text(document)


def _row(entry: RunEntry) -> tuple[str, ...]:
    return (
        _minute(entry.created_at),
        escape(entry.status),
        "-" if entry.n_steps is None else f"{entry.n_steps:,}",
        "-" if entry.n_layers is None else f"{entry.n_layers:,}",
        size(entry.size_bytes),
        escape(Path(entry.script).name) if entry.script else "-",
        escape(entry.path),
    )


def _minute(created_at: str | None) -> str:
    return escape(created_at[:16].replace("T", " ")) if created_at else "-"


def size(n_bytes: int) -> str:
    """Bytes in the largest decimal unit that leaves at least 1."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
