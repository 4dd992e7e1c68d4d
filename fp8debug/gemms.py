"""The three GEMMs of a linear layer, and which operands they read which way. Needs nothing."""

from __future__ import annotations

GEMMS = {
    "fprop": (("x", "row"), ("w", "row")),
    "dgrad": (("dy", "row"), ("w", "column")),
    "wgrad": (("dy", "column"), ("x", "column")),
}
"""The operands of each GEMM as (tensor, orientation): y = x w^T, dx = dy w, dw = dy^T x."""
READS = tuple((gemm, tensor) for gemm, operands in GEMMS.items() for tensor, _ in operands)
"""Each GEMM with each tensor that it reads: (fprop, x), (fprop, w), (dgrad, dy), …"""


def gemm_of(tensor: str, orientation: str) -> str:
    """GEMM that reads `tensor` (x, w, dy) in `orientation` (row | column); ValueError when none does."""
    for gemm, operands in GEMMS.items():
        if (tensor, orientation) in operands:
            return gemm
    raise ValueError(f"no GEMM reads {tensor} by {orientation}")


def gemms_reading(tensor: str) -> tuple[str, ...]:
    """GEMMs that read `tensor`; none reads a result (y, dx, dw) of its own layer."""
    return tuple(gemm for gemm, read in READS if read == tensor)
