"""How much of a model's arithmetic a plan leaves in low precision."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fp8debug.gemms import GEMMS
from fp8debug.plans import BF16, Plan


def flops_kept(plan: Plan, flops: Mapping[str, Mapping[str, float]]) -> float | None:
    """Share of the GEMM FLOPs that stay in low precision, 0 to 1; None where a layer in BF16 has unknown FLOPs.

    Args:
        plan: which GEMMs are in BF16: those of which an operand is.
        flops: layer → GEMM → FLOPs, of all layers.
    """
    total = math.fsum(part for gemms in flops.values() for part in gemms.values())
    out = {
        (layer, gemm)
        for layer in dict.fromkeys(entry.layer for entry in plan.entries)
        for gemm, operands in GEMMS.items()
        if any(plan.change_of(layer, tensor, gemm) == BF16 for tensor, _ in operands)
    }
    if not total or any(layer not in flops for layer, _ in out):
        return None
    return 1 - math.fsum(flops[layer].get(gemm, 0.0) for layer, gemm in out) / total
