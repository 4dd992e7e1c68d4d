"""Conventions of writing quantised checkpoints, one file of data each."""

from fp8debug.analysis.checkpoint.dialects.dialect import LEVELS, CodeSpelling, Dialect, Promise, ScaleSpelling, Sign
from fp8debug.analysis.checkpoint.dialects.loading import dialect_named, dialects

__all__ = ["LEVELS", "CodeSpelling", "Dialect", "Promise", "ScaleSpelling", "Sign", "dialect_named", "dialects"]
