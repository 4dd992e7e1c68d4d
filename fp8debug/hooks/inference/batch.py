"""The batch that a model is run on, made to fit the model's `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fp8debug.errors import UsageError, nearest

LABELS = ("labels", "targets")
TOKENS = ("input_ids", "tokens", "idx")


@dataclass(frozen=True, slots=True)
class Batch:
    """Arguments of one forward."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    labels: Tensor | None = None
    """Given as `labels` or `targets`, whether or not `forward` takes them."""

    @property
    def tokens(self) -> Tensor | None:
        """Token ids, as far as they can be told: by name, or the only whole numbers given by position."""
        named = [self.kwargs[name] for name in TOKENS if isinstance(self.kwargs.get(name), Tensor)]
        numbers = [t for t in (*named, *self.args[:1]) if isinstance(t, Tensor) and is_whole(t)]
        return numbers[0] if numbers else None

    @property
    def mask(self) -> Tensor | None:
        """`attention_mask`, where there is one."""
        mask = self.kwargs.get("attention_mask")
        return mask if isinstance(mask, Tensor) else None

    @property
    def text(self) -> str:
        """`input_ids 2x64, labels 2x64`."""
        named = [("the input" if place == 0 else f"input {place}", value) for place, value in enumerate(self.args)]
        named += self.kwargs.items()
        if self.labels is not None and not any(name in LABELS for name in self.kwargs):
            named.append(("labels", self.labels))
        tensors = [(name, value) for name, value in named if isinstance(value, Tensor)]
        return ", ".join(f"{name} {'x'.join(map(str, value.shape)) or 'scalar'}" for name, value in tensors)


def fitted(batch: Batch, model: nn.Module) -> Batch:
    """The batch on the model's device and in its dtype; labels that `forward` does not take are set aside.

    Raises:
        UsageError: `forward` does not take these arguments.
    """
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    dtype = torch.float32 if parameter is None else parameter.dtype

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype if value.is_floating_point() and dtype != torch.float32 else value.dtype)

    signature = inspect.signature(model.forward)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    kwargs = {
        name: moved(value)
        for name, value in batch.kwargs.items()
        if takes_any or name in signature.parameters or name not in LABELS
    }
    made = replace(batch, args=tuple(map(moved, batch.args)), kwargs=kwargs, labels=moved(batch.labels))
    try:
        signature.bind(*made.args, **made.kwargs)
    except TypeError as error:
        names = [name for name, p in signature.parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        unknown = [name for name in kwargs if name not in names]
        near = nearest(unknown[0], names) if unknown and not takes_any else []
        hint = f"; did you mean {near[0]} for {unknown[0]}?" if near else ""
        raise UsageError(
            f"--batch: {type(model).__name__}.forward takes {', '.join(names) or 'nothing'}, and got "
            f"{made.text or 'nothing'} ({error}){hint}"
        ) from error
    return made


def call_batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Batch:
    """The arguments of a call that was seen."""
    labels = [kwargs[name] for name in LABELS if isinstance(kwargs.get(name), Tensor)]
    return Batch(args, dict(kwargs), labels[0] if labels else None)


def is_whole(tensor: Tensor) -> bool:
    """Whether its elements are integers."""
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool
