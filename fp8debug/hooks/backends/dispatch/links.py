"""From the GEMMs of a backward pass to the forward GEMM whose gradients they compute.

Autograd numbers its nodes: the node of a forward GEMM has the number before the next one to be given, and in the
backward pass the node that runs tells its own. Both hold inside custom autograd functions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fp8debug.hooks.backends.dispatch.gemms import Gemm
from fp8debug.hooks.backends.dispatch.provenance import Place
from fp8debug.replay import Moment


class Part(NamedTuple):
    """What one record of a GEMM is about: all of it, or one expert."""

    layer: str
    moment: Moment
    cut: slice | int | None = None
    """Rows of the tokens, or an index of the batch; None: everything."""
    expert: int | None = None
    """Which matrix of a batch of weights; None: all there is."""

    def of(self, tensor: Tensor) -> Tensor:
        """The part's rows of x, y or a gradient of them."""
        return tensor if self.cut is None else tensor[self.cut]


class Operands(NamedTuple):
    """A forward GEMM in our words, whichever way round it was computed."""

    x: Tensor
    """(tokens, K), or (batch, tokens, K)."""
    w: Tensor
    """(N, K), or (batch, N, K)."""
    y: Tensor
    """(tokens, N), or (batch, tokens, N)."""
    scale_x: Tensor | None = None
    scale_w: Tensor | None = None


@dataclass(slots=True)
class Link:
    """One forward GEMM, as its backward needs to know it."""

    layer: str
    """Of the weight as a whole."""
    step: int
    tokens: int
    n: int
    k: int
    w_strides: tuple[int, int]
    """Of N and K."""
    x: Place
    w: Place
    parts: Sequence[Part]
    asked: torch.dtype
    """What the GEMM was asked to run in."""
    dy: Place | None = None
    dy_task: int | None = None
    """The backward pass that `dy` was reported in."""
    recomputed: list[tuple[Place, Place]] = field(default_factory=list)
    """Where x and w are after a recomputation."""

    def is_x(self, operand: Tensor) -> bool:
        """Whether an operand is the x of this GEMM, be it recomputed."""
        return self.x.holds(operand) or any(x.holds(operand) for x, _ in self.recomputed)

    def is_w(self, operand: Tensor) -> bool:
        """Whether an operand is the w of this GEMM, be it recomputed."""
        return self.w.holds(operand) or any(w.holds(operand) for _, w in self.recomputed)


class Gradient(NamedTuple):
    """A backward GEMM in our words."""

    role: str
    """dgrad | wgrad"""
    dy: Tensor
    """(tokens, N), or (batch, tokens, N)."""
    result: Tensor
    """dx (tokens, K) or dw (N, K), or batched."""
    scale_dy: Tensor | None = None


class Links:
    """Forward GEMMs of the step under way and the one before it, by the number of their autograd node."""

    def __init__(self) -> None:
        self._by_number: dict[int, list[Link]] = {}
        self._by_use: dict[tuple[str, int, int], Link] = {}
        """Of the step under way."""
        self._step = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, link: Link, number: int) -> None:
        """Remember a forward GEMM under its node's number."""
        if link.step != self._step:
            self._forget(link.step)
        links = self._by_number.setdefault(number, [])
        links[:] = [other for other in links if other.layer != link.layer]
        links.append(link)
        self._note_use(link)

    def _note_use(self, link: Link) -> None:
        """Whether by the forward pass or recomputed, the link's layer ran: keep the two of one use together."""
        moment = link.parts[0].moment
        use = (link.layer, moment.microbatch, moment.call)
        if moment.pass_ == "forward":
            self._by_use[use] = link
        elif (first := self._by_use.get(use)) is not None:
            first.recomputed = [(link.x, link.w)]

    def find(self, number: int) -> Sequence[Link]:
        """Candidates for a backward GEMM that runs in the node of that number."""
        return self._by_number.get(number, ())

    def _forget(self, step: int) -> None:
        self._step = step
        self._by_use.clear()
        for number in [n for n, links in self._by_number.items() if all(link.step < step - 1 for link in links)]:
            del self._by_number[number]


def gradient_of(link: Link, gemm: Gemm, is_w: Sequence[bool]) -> Gradient | None:
    """Read `gemm` as one of the two backward GEMMs of `link`; None when it is neither.

    Args:
        is_w: whether `gemm.a` and `gemm.b` are known to be made of the link's weight.
    """
    a, b, out = gemm.a, gemm.b, gemm.out
    if is_w[1]:
        return Gradient("dgrad", a, out, gemm.scale_a) if _contracts_n(link, b, -2) else None
    if is_w[0]:
        return Gradient("dgrad", b.mT, out.mT, _turned(gemm.scale_b)) if _contracts_n(link, a, -1) else None
    if a.shape[-1] != link.tokens:
        return None
    x_in_b = b.shape[-1] == link.k and a.shape[-2] == link.n
    x_in_a = a.shape[-2] == link.k and b.shape[-1] == link.n
    if x_in_a and x_in_b:
        x_in_b = not _is_x_in_a(link, a, b)
    if x_in_b:
        return Gradient("wgrad", a.mT, out, _turned(gemm.scale_a))
    return Gradient("wgrad", b, out.mT, gemm.scale_b) if x_in_a else None


def _contracts_n(link: Link, operand: Tensor, dim: int) -> bool:
    """Whether a GEMM sums over N of the weight, as dgrad does; over K: it is a forward GEMM, run again."""
    if operand.shape[dim] != link.n:
        return False
    other = -1 if dim == -2 else -2
    strides = operand.stride(dim), operand.stride(other)
    n_stride, k_stride = link.w_strides
    return link.n != link.k or strides != (k_stride, n_stride) or n_stride == k_stride


def _is_x_in_a(link: Link, a: Tensor, b: Tensor) -> bool:
    """Which operand of a wgrad is x where shapes do not tell."""
    if link.dy is not None and link.dy.holds(b):
        return True
    return link.is_x(a) and not link.is_x(b)


def _turned(scale: Tensor | None) -> Tensor | None:
    return scale.mT if scale is not None and scale.dim() > 1 else scale
