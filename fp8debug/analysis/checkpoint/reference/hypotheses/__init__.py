"""Hypotheses that explain why quantised weights differ from their reference: one module for each family.

x is the reference, q = code x factor ours. Each family reads the codes or their factors in another way, or holds the
reference as it would have been rounded against them; `explain` ranks what they explain.
"""

from fp8debug.analysis.checkpoint.reference.hypotheses.explaining import explain

__all__ = ["explain"]
