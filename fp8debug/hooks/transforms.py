"""What a script may have put around every operation: transforms of torch.func, modes such as a FLOP counter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

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


def has_data(value: torch.Tensor) -> bool:
    """Whether there are numbers in it; a dry run, on the device meta or with fake tensors, has none."""
    value = unwrapped(value)
    return not value.is_meta and not isinstance(value, FakeTensor)
