"""A checkpoint held against another one of the same model: by how much it is off, and what explains that."""

from fp8debug.analysis.checkpoint.reference.comparison import Comparison, compare_with

__all__ = ["Comparison", "compare_with"]
