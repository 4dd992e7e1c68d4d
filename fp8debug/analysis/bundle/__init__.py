"""A run made small and anonymous, to be attached to a bug report: what was found, and the records around it."""

from __future__ import annotations

from fp8debug.analysis.bundle.archive import pack
from fp8debug.analysis.bundle.collect import collect
from fp8debug.analysis.bundle.content import Bundle

__all__ = ["Bundle", "collect", "pack"]
