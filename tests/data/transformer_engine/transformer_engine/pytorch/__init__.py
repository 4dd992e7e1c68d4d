"""Stand-in; see the package."""

from transformer_engine.pytorch.module.modules import GroupedLinear, LayerNormLinear, LayerNormMLP, Linear
from transformer_engine.pytorch.quantization import (
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    autocast,
)

__all__ = [
    "DelayedScaling",
    "Float8CurrentScaling",
    "GroupedLinear",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MXFP8BlockScaling",
    "autocast",
]
