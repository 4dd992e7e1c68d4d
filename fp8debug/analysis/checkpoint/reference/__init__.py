"""A checkpoint held against another one of the same model: by how much it is off, and what explains that."""

from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor, Comparison, Hypothesis
from fp8debug.analysis.checkpoint.reference.comparison import compare_opened, compare_with
from fp8debug.analysis.checkpoint.reference.hits import once_each
from fp8debug.analysis.checkpoint.reference.three_way import Link, ThreeWay, compare_three_ways

__all__ = [
    "ComparedTensor",
    "Comparison",
    "Hypothesis",
    "Link",
    "ThreeWay",
    "compare_opened",
    "compare_three_ways",
    "compare_with",
    "once_each",
]
