"""Numbers that may still be on an accelerator: copied without waiting, read later, when nobody has to wait."""

from __future__ import annotations

import torch


class _OnItsWay:
    """A tensor on its way to the host."""

    def __init__(self, value: torch.Tensor) -> None:
        self._host = value.detach().to("cpu", non_blocking=True)
        self._event = torch.Event(device=value.device)
        self._event.record()


class DeviceScalar(_OnItsWay):
    """A number on its way to the host."""

    @property
    def is_here(self) -> bool:
        """Whether it has arrived, so that reading it waits for nothing."""
        return bool(self._event.query())

    def __float__(self) -> float:
        self._event.synchronize()
        return float(self._host)


class DeviceNumbers(_OnItsWay):
    """A vector on its way to the host."""

    def tolist(self) -> list[float]:
        """The numbers, once they have arrived."""
        self._event.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers


Scalar = float | DeviceScalar
Numbers = torch.Tensor | DeviceNumbers
"""A vector of few numbers, on the host or on its way there."""


def as_scalar(value: float | torch.Tensor) -> Scalar:
    """A float at once for numbers and CPU tensors of one element, else a copy under way."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    local = value.detach()
    if local.device.type == "cpu":
        return float(local)
    return DeviceScalar(local)


def as_numbers(value: torch.Tensor) -> Numbers:
    """The vector itself where it is on the CPU, else a copy under way."""
    return value.detach() if value.device.type == "cpu" else DeviceNumbers(value)
