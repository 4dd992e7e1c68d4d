"""One tensor of a GEMM, handed to the observer with all that is known of it."""

from __future__ import annotations

import torch
from torch import Tensor

from fp8debug.hooks.backends.base import Observer
from fp8debug.hooks.backends.dispatch.links import Part
from fp8debug.hooks.backends.placement import placement_of
from fp8debug.hooks.dtypes import dtype_word, format_of
from fp8debug.hooks.observed import LOCAL, Observed, Payload, Placement


class Teller:
    """Reports tensors of one part of a GEMM."""

    def __init__(self, observer: Observer, part: Part, asked: torch.dtype) -> None:
        self._observer = observer
        self._part = part
        self._asked = dtype_word(asked)

    def __call__(
        self,
        tensor: str,
        value: Tensor,
        scale_inv: Tensor | None = None,
        *,
        gemm_dtype: torch.dtype | None = None,
        otherwise: Placement = LOCAL,
    ) -> None:
        """Report `value` as it is now.

        Args:
            scale_inv: factor that its FP8 codes are multiplied with.
            gemm_dtype: what the GEMM read, where that is not this tensor's own.
            otherwise: placement of a tensor that does not say its own.
        """
        local, placement = placement_of(value, otherwise)
        self._observer.observe(
            Observed(
                self._part.layer,
                tensor,
                local,
                gemm_dtype or value.dtype,
                self._part.moment,
                precision_asked=self._asked,
                placement=placement,
                payload=None if scale_inv is None else _payload(local, scale_inv),
            )
        )


def _payload(codes: Tensor, scale_inv: Tensor) -> Payload | None:
    fmt = format_of(codes.dtype)
    if fmt is None:
        return None
    n_scales = scale_inv.numel()
    recipe = "current" if n_scales == 1 else "rowwise" if n_scales == codes.shape[-2] else "block"
    return Payload(codes, fmt, scale_inv, recipe)
