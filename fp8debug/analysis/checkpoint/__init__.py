"""Are the weights and scales of a checkpoint read the way they were written."""

from fp8debug.analysis.checkpoint.audit import AUDIT_VERSION, Audit, audit_checkpoint
from fp8debug.analysis.checkpoint.facts import CodeFacts, Facts, PlainFacts, ScaleFacts
from fp8debug.analysis.checkpoint.records import CheckFinding, CheckPlace, Convention, Quantised, Scale, Stored
from fp8debug.analysis.checkpoint.reference import ComparedTensor, Comparison, Link, ThreeWay

__all__ = [
    "AUDIT_VERSION",
    "Audit",
    "CheckFinding",
    "CheckPlace",
    "CodeFacts",
    "ComparedTensor",
    "Comparison",
    "Convention",
    "Facts",
    "Link",
    "PlainFacts",
    "Quantised",
    "Scale",
    "ScaleFacts",
    "Stored",
    "ThreeWay",
    "audit_checkpoint",
]
