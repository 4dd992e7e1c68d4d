"""How kernels are compiled: ahead of use, without the GIL, cached on disk where a disk allows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(*signatures: str, fastmath: Iterable[str] = ()) -> Callable[[Function], Function]:
    """Compile a function at once for each of the signatures.

    Never `parallel=True`: numba's workqueue layer aborts the process when two Python threads enter it, and its
    OpenMP layer kills forked children. A cache that cannot be written (read-only installation without a home, a full
    disk) costs the compilation at each start, nothing else.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}

    def compile_(function: Function) -> Function:
        try:
            return cast(Function, numba.njit(list(signatures), cache=True, **options)(function))
        except (OSError, RuntimeError):
            return cast(Function, numba.njit(list(signatures), **options)(function))

    return compile_


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(memory, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        wanted = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        insert: Any = cgutils.get_or_insert_function
        function = insert(builder.module, wanted, "llvm.prefetch.p0i8")
        for_reading, into_all_caches, data = number(0), number(3), number(1)
        builder.call(function, [address, for_reading, into_all_caches, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


prefetch = cast(Callable[[Any, int], None], intrinsic(_prefetch))
"""Ask for the cache line of an element of an array, which may lie beyond its end; only kernels can call it."""
