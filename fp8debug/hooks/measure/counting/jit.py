"""How kernels are compiled: ahead of use, without the GIL, cached on disk where a disk allows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(signature: str, *, fastmath: Iterable[str] = ()) -> Callable[[Function], Function]:
    """Compile a function at once for one signature.

    Never `parallel=True`: numba's workqueue layer aborts the process when two Python threads enter it, and its
    OpenMP layer kills forked children. A cache that cannot be written (read-only installation without a home, a full
    disk) costs the compilation at each start, nothing else.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}

    def compile_(function: Function) -> Function:
        try:
            return cast(Function, numba.njit(signature, cache=True, **options)(function))
        except (OSError, RuntimeError):
            return cast(Function, numba.njit(signature, **options)(function))

    return compile_
