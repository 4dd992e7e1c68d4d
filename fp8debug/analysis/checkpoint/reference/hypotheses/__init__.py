"""Hypotheses that explain why quantised weights differ from their reference: one module for each family.

x is the reference, q = code x factor ours. Each family reads the codes or their factors in another way, or holds the
reference as it would have been rounded against them; `explain` ranks what they explain.
"""

from fp8debug.analysis.checkpoint.reference.hypotheses.explaining import explain
from fp8debug.analysis.checkpoint.reference.hypotheses.mx_rounding import MxRounding, name_mx_rounding
from fp8debug.analysis.checkpoint.reference.hypotheses.scale_rule import ScaleRule, name_scale_rule

__all__ = ["MxRounding", "ScaleRule", "explain", "name_mx_rounding", "name_scale_rule"]
