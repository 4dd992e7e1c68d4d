"""Health and histogram of tensors on accelerators, as the engines take them of tensors on the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from fp8debug.hooks.measure import codes, layout
from fp8debug.hooks.measure.device.kernels import Kernels
from fp8debug.hooks.measure.device.landing import Arriving, Landing
from fp8debug.hooks.measure.device.tally import new_tally, read
from fp8debug.hooks.measure.device.torch_kernels import TorchKernels
from fp8debug.hooks.say import error_text

DEVICES = ("cuda", "xpu")
"""Types of device with streams, events and pinned memory; ROCm's is called cuda too."""


def is_on_accelerator(t: torch.Tensor) -> bool:
    """Whether `DeviceCounter` is to measure it: engines wait for tensors of other devices, and copy them."""
    return t.device.type in DEVICES


class DeviceCounter:
    """Measures where the tensor is; nothing waits for the device, and nothing of the tensor is kept."""

    def __init__(self, kernels: Kernels | None = None, note: Callable[[str], None] = lambda message: None) -> None:
        """Measure with `kernels`, by default the best ones of each device; `note` is told where those do not run."""
        self._given = kernels
        self._note = note
        self._kernels: dict[torch.device, Kernels] = {}
        self._landings: dict[torch.device, Landing] = {}

    def health(self, t: torch.Tensor, gemm_dtype: torch.dtype) -> Arriving:
        """Take the health of `t`, not empty, as the GEMM reads it: one pass. Raises UnsupportedDtype."""
        return self._measure(t, gemm_dtype, counted=False)

    def count(self, t: torch.Tensor, gemm_dtype: torch.dtype) -> Arriving:
        """Count the distinct values of `t`, not empty, as the GEMM reads it. Raises UnsupportedDtype.

        One pass; where FP32 values are counted as BF16 that the GEMM does not round, another one for their health.
        """
        return self._measure(t, gemm_dtype, counted=True)

    def kernels_of(self, device: torch.device) -> Kernels:
        """What measures on a device: Triton's kernels where Triton is installed and runs, else torch's operations."""
        if device not in self._kernels:
            self._kernels[device] = self._given or self._best_kernels(device)
        return self._kernels[device]

    def _measure(self, t: torch.Tensor, gemm_dtype: torch.dtype, *, counted: bool) -> Arriving:
        way = codes.route(t.dtype, gemm_dtype)
        # What is made in inference mode could not be changed outside of it, and pinned memory is used again.
        with torch.inference_mode(False), torch.no_grad(), _on(t.device):
            kernels = self.kernels_of(t.device) if t.dtype is not torch.float64 else TorchKernels()
            tally = new_tally(t, way, counts=counted)
            first = 0
            for block in layout.flat_blocks(t.detach()):
                if tally.counts_values:
                    kernels.add_counts(block, first, tally)
                if not tally.health_by_counts:
                    kernels.add_health(block, first, tally)
                first += block.numel()
            tally.finish()
            return self._landing_of(t.device).send(tally.numbers, partial(read, tally, counted=counted))

    def _best_kernels(self, device: torch.device) -> Kernels:
        try:
            from fp8debug.hooks.measure.device.triton_kernels import TritonKernels

            kernels = TritonKernels()
            kernels.warm_up(device)
        except Exception as error:  # not installed, no compiler, a device that Triton does not know
            self._note(f"Triton does not run on {device}: torch's operations count there, slower ({error_text(error)})")
            return TorchKernels()
        return kernels

    def _landing_of(self, device: torch.device) -> Landing:
        if device not in self._landings:
            self._landings[device] = Landing(device)
        return self._landings[device]


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make it the current device: Triton launches there, whatever device its arguments are on."""
    if device.type == "cpu":
        return nullcontext()
    there: AbstractContextManager[object] = torch.get_device_module(device).device(device)
    return there
