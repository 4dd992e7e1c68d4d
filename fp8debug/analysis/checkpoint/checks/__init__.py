"""Checks that need nothing but the checkpoint itself; one module for each thing that is looked at."""

from __future__ import annotations

from fp8debug.analysis.checkpoint.checks.attention import kv_scale_one, kv_scale_shared
from fp8debug.analysis.checkpoint.checks.codes import codes
from fp8debug.analysis.checkpoint.checks.columns import column_clipped
from fp8debug.analysis.checkpoint.checks.completeness import completeness
from fp8debug.analysis.checkpoint.checks.demands import demands
from fp8debug.analysis.checkpoint.checks.exclusions import exclusions
from fp8debug.analysis.checkpoint.checks.fused import fused_scales_differ
from fp8debug.analysis.checkpoint.checks.hit import Check
from fp8debug.analysis.checkpoint.checks.lost_scales import lost_scales
from fp8debug.analysis.checkpoint.checks.lost_tensors import lost_tensors
from fp8debug.analysis.checkpoint.checks.magnitude import magnitude
from fp8debug.analysis.checkpoint.checks.nonfinite import nonfinite
from fp8debug.analysis.checkpoint.checks.numbering import numbering
from fp8debug.analysis.checkpoint.checks.pairs import pairs
from fp8debug.analysis.checkpoint.checks.products import scale_product_out_of_range
from fp8debug.analysis.checkpoint.checks.reciprocal import reciprocal_wrong
from fp8debug.analysis.checkpoint.checks.scales import scales
from fp8debug.analysis.checkpoint.checks.shape import shape
from fp8debug.analysis.checkpoint.checks.sharding import sharding
from fp8debug.analysis.checkpoint.checks.shared import scale_copied, scale_shared_by_parts
from fp8debug.analysis.checkpoint.checks.twice import scale_twice
from fp8debug.analysis.checkpoint.checks.unmatched import unmatched

CHECKS: tuple[Check, ...] = (
    lost_tensors,
    nonfinite,
    pairs,
    scale_twice,
    shape,
    lost_scales,
    completeness,
    numbering,
    exclusions,
    unmatched,
    scales,
    magnitude,
    codes,
    reciprocal_wrong,
    scale_shared_by_parts,
    scale_copied,
    scale_product_out_of_range,
    column_clipped,
    fused_scales_differ,
    kv_scale_one,
    kv_scale_shared,
    sharding,
    demands,
)
"""All of them, in the order in which a person would ask."""
