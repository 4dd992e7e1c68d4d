"""What is told of a GEMM: its operands under the right layer and moment, cut by expert where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fp8debug.hooks.backends.base import FoundLayer, Observer
from fp8debug.hooks.backends.dispatch.gemms import Gemm
from fp8debug.hooks.backends.dispatch.links import Gradient, Link, Links, Operands, Part
from fp8debug.hooks.backends.dispatch.provenance import Place, Source
from fp8debug.hooks.backends.dispatch.telling import Teller
from fp8debug.hooks.backends.placement import WeightPlacements
from fp8debug.hooks.clock import in_backward
from fp8debug.hooks.dtypes import dtype_word
from fp8debug.hooks.observed import LOCAL, Placement
from fp8debug.replay import Moment


class _Loop(NamedTuple):
    """Experts that are computed one by one."""

    layer: FoundLayer
    n_experts: int
    nothing: Tensor
    """x of an expert without tokens, (0, K)."""
    seen: set[int]


class Reporter:
    """Tells an observer of GEMMs."""

    observer: Observer
    """Whom to tell; set before anything is told."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._known: set[str] = set()
        """Experts that the observer was told of."""
        self._loops: dict[str, _Loop] = {}
        """Experts that were computed one by one, by the weight of them all."""
        self._said: set[tuple[str, str]] = set()
        self._placements: WeakKeyDictionary[nn.Module, WeightPlacements] = WeakKeyDictionary()

    def watch(self, model: nn.Module) -> None:
        """Know the wrappers around the weights of a model."""
        if model not in self._placements:
            self._placements[model] = WeightPlacements(model)

    def forward(
        self, layer: FoundLayer, operands: Operands, gemm: Gemm, source: Source | None, autocast: torch.dtype | None
    ) -> None:
        """Report a forward GEMM, and remember it for the backward pass.

        Args:
            source: what its weight was made of, where that is known.
            autocast: dtype that autocast asks for, where it is in force.
        """
        if operands.w.dim() == 3 and (source is None or not source.is_batch):  # the same for the whole batch
            operands = operands._replace(w=operands.w[0])
        parts = self._parts(layer, operands, gemm, source)
        dtype, wanted = operands.x.dtype, self.observer.tensors
        asked = autocast or operands.w.dtype
        self._compare(layer.name, dtype, asked)
        for part in parts:
            tell = Teller(self.observer, part, asked)
            if "x" in wanted:
                tell("x", part.of(operands.x), operands.scale_x)
            if "w" in wanted and self.observer.wants_weight(part.layer, part.moment):
                tell("w", _weight_of(part, operands.w), operands.scale_w, otherwise=self._placement(layer, part.moment))
            if "y" in wanted:
                tell("y", part.of(operands.y), gemm_dtype=dtype)
        if parts[0].moment.pass_ != "eval":
            self._links.add(link_of(layer.name, operands, parts, asked), forward_number())

    def unweighted(self, layer: FoundLayer, operands: Operands, autocast: torch.dtype | None, *, takes: bool) -> Part:
        """Report a forward GEMM of two activations, `w` in each pass; return the moment it has."""
        part = Part(layer.name, self._moment(layer.name, layer))
        dtype, wanted = operands.x.dtype, self.observer.tensors
        if takes:
            self._compare(layer.name, dtype, autocast or dtype)
            tell = Teller(self.observer, part, autocast or dtype)
            for tensor, value in (("x", operands.x), ("w", operands.w), ("y", operands.y)):
                if tensor in wanted:
                    tell(tensor, value, gemm_dtype=dtype)
            if part.moment.pass_ != "eval":
                self._links.add(link_of(layer.name, operands, [part], autocast or dtype), forward_number())
        return part

    def end_call(self, module: nn.Module) -> None:
        """A module's forward is over: experts that got no tokens are said to have got none."""
        for name, loop in [*self._loops.items()]:
            if loop.layer.module is module:
                del self._loops[name]
                if loop.seen and "x" in self.observer.tensors and not in_backward():
                    for expert in sorted(set(range(loop.n_experts)) - loop.seen):
                        Teller(self.observer, self._part(loop.layer, expert, None), loop.nothing.dtype)(
                            "x", loop.nothing
                        )

    def backward(self, link: Link, gradient: Gradient) -> None:
        """Report a backward GEMM: `dy` by whichever of the two comes first."""
        observer = self.observer
        observer.clock.backward()
        task = torch._C._current_graph_task_id()
        is_first, link.dy_task, link.dy = link.dy_task != task, task, Place(gradient.dy)
        wanted = observer.tensors
        for part in link.parts:
            tell = Teller(observer, part._replace(moment=part.moment._replace(pass_="backward")), link.asked)
            if "dy" in wanted and is_first:
                tell("dy", part.of(gradient.dy), gradient.scale_dy)
            if "dx" in wanted and gradient.role == "dgrad":
                tell("dx", part.of(gradient.result), gemm_dtype=gradient.dy.dtype)
            dw = _gradient_of_weight(part, gradient.result) if gradient.role == "wgrad" else None
            if "dw" in wanted and dw is not None:
                tell("dw", dw, gemm_dtype=gradient.dy.dtype)

    def note_once(self, kind: str, layer: str, message: str) -> None:
        """Say something of a layer, once."""
        if (kind, layer) not in self._said:
            self._said.add((kind, layer))
            self.observer.note(kind, message, layer)

    def _compare(self, layer: str, ran: torch.dtype, asked: torch.dtype) -> None:
        if ran is not asked and ran.itemsize > 1 and ran is not torch.float64:  # autocast leaves FP64 alone
            message = f"asked to run in {dtype_word(asked)}, ran in {dtype_word(ran)}"
            self.note_once("precision_differs", layer, message)

    def _placement(self, layer: FoundLayer, moment: Moment) -> Placement:
        """Where else this weight is."""
        weight = layer.module._parameters.get(layer.parameter)
        if weight is None:
            return LOCAL
        of = (p.of(layer.module, layer.parameter, weight, LOCAL, moment.step) for p in self._placements.values())
        return next((placement for placement in of if placement is not LOCAL), LOCAL)

    def _parts(self, layer: FoundLayer, operands: Operands, gemm: Gemm, source: Source | None) -> list[Part]:
        w = operands.w
        if source is None:
            return [Part(layer.name, self._moment(layer.name, layer))]
        if w.dim() == 3 and source.n_experts == w.shape[0]:
            if gemm.offsets is None:
                return [self._part(layer, i, i) for i in range(w.shape[0])]
            if gemm.offsets.device.type == "cpu":
                ends = gemm.offsets.tolist()
                begins = [0, *ends[:-1]]
                return [self._part(layer, i, slice(*rows)) for i, rows in enumerate(zip(begins, ends, strict=True))]
            message = "all experts in one record: which tokens are whose is known to the accelerator alone"
            self.note_once("not_captured", layer.name, message)
        elif w.dim() == 2 and (expert := source.expert_of(w)) is not None:
            loop = self._loops.setdefault(
                layer.name, _Loop(layer, source.n_experts, operands.x.new_empty(0, w.shape[-1]), set())
            )
            loop.seen.add(expert)
            return [self._part(layer, expert, None)]
        return [Part(layer.name, self._moment(layer.name, layer))]

    def _part(self, layer: FoundLayer, expert: int, cut: slice | int | None) -> Part:
        name = f"{layer.name}[{expert}]"
        if name not in self._known:
            self._known.add(name)
            self.observer.found(replace(layer, name=name, raw_name=f"{layer.raw_name}[{expert}]"))
        return Part(name, self._moment(name, layer), cut, None if cut is None else expert)

    def _moment(self, name: str, layer: FoundLayer) -> Moment:
        return self.observer.clock.forward(name, layer.module.training)


def forward_number() -> int:
    """Number of the autograd node of the operation that runs now."""
    return torch._C._autograd._get_sequence_nr() - 1


def link_of(layer: str, operands: Operands, parts: Sequence[Part], asked: torch.dtype) -> Link:
    """What the backward pass needs to know of a forward GEMM."""
    x, w = operands.x, operands.w
    return Link(
        layer,
        parts[0].moment.step,
        x.shape[-2],
        w.shape[-2],
        w.shape[-1],
        (w.stride(-2), w.stride(-1)),
        Place(x),
        Place(w),
        parts,
        asked,
    )


def operands_of(gemm: Gemm, weight_is_b: bool) -> Operands:
    """Turn a GEMM so that it is y = x w^T. A weight that is the same for the whole batch is given once."""
    if weight_is_b:
        x, w, y, scale_x, scale_w = gemm.a, gemm.b.mT, gemm.out, gemm.scale_a, _turned(gemm.scale_b)
    else:
        x, w, y, scale_x, scale_w = gemm.b.mT, gemm.a, gemm.out.mT, _turned(gemm.scale_b), gemm.scale_a
    return Operands(x, w, y, scale_x, scale_w)


def _turned(scale: Tensor | None) -> Tensor | None:
    return scale.mT if scale is not None and scale.dim() > 1 else scale


def _weight_of(part: Part, w: Tensor) -> Tensor:
    return w if part.expert is None else w[part.expert]


def _gradient_of_weight(part: Part, dw: Tensor) -> Tensor | None:
    if part.expert is not None:
        return dw[part.expert]
    return dw if dw.dim() == 2 else None  # of a batch that shares its weight: no gradient of it yet
