"""Logs of other tools as runs."""

from __future__ import annotations

from fp8debug.analysis.importing.importer import TE_LOG, Imported, import_te_logs
from fp8debug.analysis.importing.notes import Note

__all__ = ["TE_LOG", "Imported", "Note", "import_te_logs"]
