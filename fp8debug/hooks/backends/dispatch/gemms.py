"""Which operations are GEMMs, and where their operands stand among the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload


class Gemm(NamedTuple):
    """`out = a @ b`, in two dimensions or, batched, in three."""

    a: Tensor
    """(M, C) or (batch, M, C)."""
    b: Tensor
    """(C, P) or (batch, C, P)."""
    out: Tensor
    """(M, P) or (batch, M, P)."""
    offsets: Tensor | None = None
    """Where each group of a grouped GEMM ends: among the rows of `a`, or along C."""
    scale_a: Tensor | None = None
    """Factor that the FP8 codes in `a` are multiplied with."""
    scale_b: Tensor | None = None
    is_batched: bool = False
    """Whether it was computed as a batch, be it of one."""


_Read = Callable[[tuple[Any, ...], dict[str, Any], Tensor], Gemm | None]


def _at(place: int) -> _Read:
    def read(args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Gemm:
        return _squeezed(Gemm(args[place], args[place + 1], out))

    return read


def _scaled(args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Gemm:
    return Gemm(
        args[0], args[1], out, None, _argument(args, kwargs, 2, "scale_a"), _argument(args, kwargs, 3, "scale_b")
    )


def _grouped(args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Gemm:
    return Gemm(args[0], args[1], out, _argument(args, kwargs, 2, "offs"))


def _scaled_grouped(args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Gemm:
    scales = _argument(args, kwargs, 2, "scale_a"), _argument(args, kwargs, 3, "scale_b")
    return Gemm(args[0], args[1], out, _argument(args, kwargs, 4, "offs"), *scales)


def _linear(args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Gemm:
    """In one piece in inference mode, and on devices that have a kernel of its own."""
    return Gemm(args[0].reshape(-1, args[0].shape[-1]), args[1].mT, out.reshape(-1, out.shape[-1]))


def _matmul(args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Gemm | None:
    """As `_linear`; None where a vector makes it no GEMM."""
    a, b = args[0], args[1]
    if a.dim() < 2 or b.dim() < 2:
        return None
    if b.dim() == 2:
        return Gemm(a.reshape(-1, a.shape[-1]), b, out.reshape(-1, out.shape[-1]))
    batch = out.shape[:-2]
    a, b, out = (t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (a, b, out))
    return _squeezed(Gemm(a, b, out))


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _squeezed(gemm: Gemm) -> Gemm:
    """A batch of one, as einsum makes it, is no batch."""
    if gemm.a.dim() == 3 and gemm.a.shape[0] == 1:
        return gemm._replace(a=gemm.a[0], b=gemm.b[0], out=gemm.out[0], is_batched=True)
    return gemm._replace(is_batched=gemm.a.dim() == 3)


_READERS: dict[str, _Read] = {
    "mm": _at(0),
    "bmm": _at(0),
    "addmm": _at(1),
    "baddbmm": _at(1),
    "_addmm_activation": _at(1),
    "linear": _linear,
    "matmul": _matmul,
    "_scaled_mm": _scaled,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _scaled_grouped,
}
_WHOLE = ("einsum",)
"""Made of the above; inference mode hands it over in one piece."""


def gemm_operations() -> dict[OpOverload, _Read]:
    """Every GEMM of this version of torch, with what reads its operands (called with args, kwargs and the result)."""
    return {overload: read for name, read in _READERS.items() for overload in overloads(name)}


def whole_operations() -> frozenset[OpOverload]:
    """Operations to take apart into GEMMs."""
    return frozenset(overload for name in _WHOLE for overload in overloads(name))


def outside_autograd() -> Iterator[OpOverload]:
    """GEMMs into a buffer that is given, as in the graphs of a compiler: autograd knows no node of them."""
    for name in ("mm", "bmm", "addmm", "baddbmm"):
        packet = getattr(torch.ops.aten, name)
        yield from (found for o in packet.overloads() if _returns_argument(found := getattr(packet, o)))


def overloads(name: str) -> Iterator[OpOverload]:
    """Overloads of an ATen operation that return new tensors; none where this version of torch has none."""
    packet = getattr(torch.ops.aten, name, None)
    for overload in () if packet is None else packet.overloads():
        found = getattr(packet, overload)
        if not _returns_argument(found):
            yield found


def _returns_argument(operation: OpOverload) -> bool:
    return any(argument.is_out for argument in operation._schema.arguments)
