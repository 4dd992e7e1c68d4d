"""What every hook of ours on a module is, so that copies of the model and pickled ones are left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


class ModuleHook:
    """A hook that works on this model alone.

    In a copy of the model it does nothing, and a pickled model can be loaded where fp8debug is not installed.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes any arguments and returns None
