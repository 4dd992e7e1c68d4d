"""Tensors that no dialect speaks of: parameters of an ordinary model, or something that wants a look."""

from __future__ import annotations

import re

from fp8debug.analysis.checkpoint.records import Stored

_FLOATS = {"F64", "F32", "F16", "BF16"}
_BUFFERS = {"I64", "I32", "BOOL", "C64"}
"""dtypes of buffers that models have: positions, masks, counts of batches, tables of expert ids."""
_STRANGE = re.compile(
    r"weight_scale|scale_weight|scale_inv|scaling_factor|input_scale|scale_input|global_scale|zero_point|qzeros"
    r"|qweight|g_idx|amax|quantizer|exp_avg|momentum_buffer|optimizer|_extra_state"
)
"""What scales, codes and states of optimizers are called, and parameters of a model are not."""


def is_plain(stored: Stored) -> bool:
    """Whether it is numbers that mean what they are."""
    return stored.dtype in _FLOATS or (stored.dtype in _BUFFERS and not _STRANGE.search(stored.name))


def is_unexplained(stored: Stored) -> bool:
    """Whether nobody knows what it is for: a strange name, or a dtype that parameters and buffers do not have."""
    return stored.dtype not in _FLOATS | _BUFFERS or _STRANGE.search(stored.name) is not None
