"""A checkpoint held against another one of the same model: by how much it is off, and what explains that."""

from fp8debug.analysis.checkpoint.reference.comparison import ComparedTensor, Comparison, compare_opened, compare_with

__all__ = ["ComparedTensor", "Comparison", "compare_opened", "compare_with"]
