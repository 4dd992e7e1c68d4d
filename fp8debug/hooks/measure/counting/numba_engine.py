"""The compiled engine: one pass over the memory of a CPU tensor."""

from __future__ import annotations

from fp8debug.hooks.measure.counting.torch_ops import TorchEngine


class NumbaEngine(TorchEngine):
    """Measures CPU tensors with compiled kernels, others as TorchEngine does."""

    name = "numba"
