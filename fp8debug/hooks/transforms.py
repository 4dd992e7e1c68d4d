"""torch.func: its transforms wrap every tensor, and whatever is computed while one runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

_NOWHERE: AbstractContextManager[object] = nullcontext()


def inside_transform() -> bool:
    """Whether grad, vmap or the like runs right now."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def outside_transforms() -> AbstractContextManager[object]:
    """Leave them for a while: what is computed then is plain."""
    return temporarily_clear_interpreter_stack() if inside_transform() else _NOWHERE


def unwrapped(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself where a transform wraps it; under vmap it has the batch dimension too."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value
