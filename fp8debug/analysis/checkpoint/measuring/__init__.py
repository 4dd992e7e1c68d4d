"""One pass over the bytes of a checkpoint: what is counted on the way, as facts."""

from fp8debug.analysis.checkpoint.measuring.passing import measure, scales_only

__all__ = ["measure", "scales_only"]
