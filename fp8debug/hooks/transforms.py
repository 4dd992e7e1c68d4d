"""What a script may have put around every operation: transforms of torch.func, modes such as a FLOP counter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NOWHERE: AbstractContextManager[object] = nullcontext()


def inside_transform() -> bool:
    """Whether grad, vmap or the like runs right now."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def outside_transforms() -> AbstractContextManager[object]:
    """Leave transforms and modes for a while: what is computed then is plain, and none of the script's business."""
    if inside_transform() or torch._C._len_torch_dispatch_stack():
        return _outside()
    return _NOWHERE


@contextmanager
def _outside() -> Iterator[None]:
    with temporarily_clear_interpreter_stack() if inside_transform() else _NOWHERE, _disable_current_modes():
        yield


def unwrapped(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself where a transform wraps it; under vmap it has the batch dimension too."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def is_plain(value: torch.Tensor) -> bool:
    """Whether its elements lie in memory of its own, and are not those of other tensors that a class stands for."""
    return type(value) in _PLAIN or not is_traceable_wrapper_subclass(value)


def held_by(value: torch.Tensor) -> torch.Tensor:
    """The tensor that a wrapper has its elements in, where that is one of its dtype and shape; else `value` itself.

    torchao's weights that FSDP2 gathers in FP8 are such wrappers.
    """
    while not is_plain(value):
        parts = [getattr(value, name) for name in value.__tensor_flatten__()[0]]  # type: ignore[attr-defined]
        alike = [part for part in parts if part.dtype is value.dtype and part.shape == value.shape]
        if len(alike) != 1:
            return value
        (value,) = alike
    return value


def has_data(value: torch.Tensor) -> bool:
    """Whether there are numbers in it; a dry run, on the device meta or with fake tensors, has none."""
    value = unwrapped(value)
    return not value.is_meta and not isinstance(value, FakeTensor)
