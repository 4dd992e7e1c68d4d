"""From the names, dtypes, shapes and configurations of a checkpoint to how it is read."""

from fp8debug.analysis.checkpoint.convention.recognising import read_convention

__all__ = ["read_convention"]
