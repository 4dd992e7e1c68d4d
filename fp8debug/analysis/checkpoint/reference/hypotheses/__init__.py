"""Hypotheses that explain why a tensor differs from its reference: one module for each family.

x is the reference, q = code x factor ours. A family reads the codes or their factors in another way, or holds the
reference as it would have been rounded against them; `explain` ranks what they explain. Names of hypotheses:

scale_reading: inverted, unscaled, second_level, applied_twice, scaled_twice, e8m0_as_integer, scale_format, byte_order
second_level: missing_second_level, wrong_second_level | factors: power_of_two, range_mismatch, e8m0_bias, sign
grid_order, shifts: transposed_grid, permuted_grid, swizzled_grid | block_size: block_size | siblings: other_layer
own_scales: ceil_scale, floor_scale, nearest_scale, lost_scales, mx_rounding, permuted_grid, copied_scale, stale,
other_scales
element_format: fnuz, element_format, integers, nibble_order, packing | transposed: transposed
line_order: line_order | rotary: rotary_order | plain: one_added, plain_factor, element_order
no_scale: no_scale | few_cells: few_blocks | parts: joined_parts | columns: column_factors, column_order
zeroed: zeroed | clipping: clipped | rounding: truncation, rounded_away, stochastic_rounding
second_rounding: second_rounding, rounded_once
fitted: stale, other_scales; and where no cause is known: unexplained, other_values, different_weights, all_zero
"""

from fp8debug.analysis.checkpoint.reference.hypotheses.explaining import explain
from fp8debug.analysis.checkpoint.reference.hypotheses.mx_rounding import MxRounding, name_mx_rounding
from fp8debug.analysis.checkpoint.reference.hypotheses.scale_rule import ScaleRule, name_scale_rule

__all__ = ["MxRounding", "ScaleRule", "explain", "name_mx_rounding", "name_scale_rule"]
