"""What to check first when an FP8 run is worse from its first steps: that is seldom the precision itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at in the software."""

    name: str
    why: str


CHECKS = (
    Check("scale of the loss", "a loss scale or a mean over micro-batches that is applied twice, or not divided out"),
    Check("reduction of amax", "amax over the wrong group, or of the local shard alone: scales differ between ranks"),
    Check("first and last layers", "embedding, head, router and norms should stay in high precision"),
    Check("weight cache", "FP8 weights that are kept over micro-batches must be made anew after each optimizer step"),
    Check("loading of FP8 parameters", "master weights that are taken from FP8 codes have lost their last bits"),
    Check("fused gradient accumulation", "switch it off once: weight gradients added twice, or to a stale buffer"),
    Check("activation recomputation", "the second forward must not move the amax history; switch it off once"),
    Check("versions", "the same on both sides, and no known fault in the FP8 library's own notes"),
)
