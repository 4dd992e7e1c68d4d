"""Single numbers that may still be on an accelerator: copied without waiting, read on the writer's thread."""

from __future__ import annotations

import torch


class DeviceScalar:
    """A number on its way to the host."""

    def __init__(self, value: torch.Tensor) -> None:
        self._host = value.detach().to("cpu", non_blocking=True)
        self._event = torch.Event(device=value.device)
        self._event.record()

    def __float__(self) -> float:
        self._event.synchronize()
        return float(self._host)


Scalar = float | DeviceScalar


def as_scalar(value: float | torch.Tensor) -> Scalar:
    """A float at once for numbers and CPU tensors of one element, else a copy under way."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    local = value.detach()
    if local.device.type == "cpu":
        return float(local)
    return DeviceScalar(local)
