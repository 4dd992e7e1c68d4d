"""One tensor as a backend sees it: what is handed from the backends to the recorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from fp8debug.formats import Format
from fp8debug.replay import Moment, ScaleInForce


class Placement(NamedTuple):
    """Which part of a tensor this rank holds."""

    text: str = "local"
    """local | replicate | shard(dim) | partial; one word a mesh dimension, comma between."""
    shard: str | None = None
    """Which piece, such as `1/4`; None: the whole tensor."""
    replica_of: int | None = None
    """Lowest global rank that holds the same data; None: this rank alone does."""


LOCAL = Placement()


class Payload(NamedTuple):
    """What the framework's GEMM really read of an operand."""

    codes: torch.Tensor
    """The operand's shape, in an FP8 dtype, or uint8 codes of `fmt`."""
    fmt: Format
    scale_inv: torch.Tensor | float
    """Factor that the codes are multiplied with: one number, or whatever broadcasts to the shape of `codes`."""
    recipe: str
    """The framework's recipe in our words, such as `current`, `delayed:amax_history_len=16` or `rowwise`."""
    scales: Sequence[ScaleInForce] = ()
    """The framework's own state of this operand, where it has any."""


class Observed(NamedTuple):
    """One tensor as a hook sees it; it may change as soon as the observer returns."""

    layer: str
    tensor: str
    value: torch.Tensor
    """In high precision; the payload's codes where there is nothing else."""
    gemm_dtype: torch.dtype
    """dtype that the GEMM consumes it in, scaling apart."""
    moment: Moment
    framework: Sequence[ScaleInForce] = ()
    """Scales that the framework itself had in force for this pass."""
    precision_asked: str | None = None
    """dtype that the GEMM was asked to run in, such as `bfloat16` or `float8_e4m3fn`."""
    placement: Placement = LOCAL
    payload: Payload | None = None
