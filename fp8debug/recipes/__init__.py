"""Scaling recipes: how scales follow from magnitudes, for a whole tensor or for its blocks.

Names, parameters and defaults are upstream's, and so is the arithmetic, bit for bit; where upstreams disagree, a
parameter `flavour` names the one to follow. A recipe's canonical text, such as `delayed:amax_history_len=16`, names it
in every table.
"""

from fp8debug.recipes.base import BACKWARD_TENSORS, FORWARD_TENSORS, FP8_FORMATS, Recipe, scale_inv
from fp8debug.recipes.block import BlockFactors, BlockRecipe, BlockScaling, RowWise, Tile
from fp8debug.recipes.delayed import MARGIN_LIMIT, DelayedScaling, DelayedState
from fp8debug.recipes.mx import MXFP4, MXFP6, MXFP8, MXRecipe, e8m0_scales
from fp8debug.recipes.nvfp4 import NVFP4
from fp8debug.recipes.parse import RECIPES, parse_recipe
from fp8debug.recipes.tensor import BF16, BFLOAT16, CurrentScaling, RangeExpansion, Static, TensorRecipe, scaled_cast

__all__ = [
    "BACKWARD_TENSORS",
    "BF16",
    "BFLOAT16",
    "FORWARD_TENSORS",
    "FP8_FORMATS",
    "MARGIN_LIMIT",
    "MXFP4",
    "MXFP6",
    "MXFP8",
    "NVFP4",
    "RECIPES",
    "BlockFactors",
    "BlockRecipe",
    "BlockScaling",
    "CurrentScaling",
    "DelayedScaling",
    "DelayedState",
    "MXRecipe",
    "RangeExpansion",
    "Recipe",
    "RowWise",
    "Static",
    "TensorRecipe",
    "Tile",
    "e8m0_scales",
    "parse_recipe",
    "scale_inv",
    "scaled_cast",
]
