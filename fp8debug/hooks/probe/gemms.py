"""From operands, as hooks report them, to rows of the table `gemms`.

The GEMMs of one use of a layer need tensors that are never there together: fprop x and w, dgrad dy and w, wgrad dy and
x. So the sampled columns of x and w wait, as copies on the CPU, from the forward pass to the backward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from fp8debug.hooks.measure.strips import as_matrix
from fp8debug.hooks.observed import Observed
from fp8debug.hooks.probe.operand import SAMPLED_DTYPES, Operand, take_operand, tiles_of
from fp8debug.hooks.probe.result import gemm_cells
from fp8debug.hooks.probe.turns import Turns
from fp8debug.hooks.recorder import Facts
from fp8debug.hooks.transforms import inside_transform, outside_transforms
from fp8debug.recipes import Recipe
from fp8debug.replay import Moment

_MB = 1 << 20
_Take = Callable[[str], Operand]  # given an orientation


class _Key(NamedTuple):
    """Which record a row belongs to."""

    layer: str
    tensor: str
    moment: Moment
    seq: int


class _Latest(NamedTuple):
    """An x whose w is reported next."""

    key: _Key
    lines: Operand
    columns: Operand | None
    """None: it is not the layer's turn to be kept."""
    needs_recompute: bool
    """No graph was built: gradients will come from a recomputed pass, if any."""


class _Kept(NamedTuple):
    """What one forward pass leaves for the backward pass."""

    x: Operand
    w: Operand
    needs_recompute: bool


AddRows = Callable[[str, str, Moment, int, Iterable[tuple[Any, ...]]], None]
"""Takes layer, tensor, moment and seq of a record, and the cells of its rows after the record key."""
Note = Callable[[str, int], None]
"""Takes a message about the probe's memory, and the step it was noticed at."""


class GemmProbe:
    """Probes the first use of each layer in the first micro-batch of the steps it is shown."""

    def __init__(
        self,
        recipes: Sequence[Recipe],
        accumulations: Sequence[str],
        memory_mb: int,
        add_rows: AddRows,
        note: Note,
        *,
        serves: bool = False,
    ) -> None:
        self._recipes = recipes
        self._accumulations = accumulations
        self._memory_mb = memory_mb
        self._add_rows = add_rows
        self._note = note
        self._serves = serves
        self._tiles = {tensor: tiles_of(recipes, tensor) for tensor in ("x", "w", "dy")}
        self._turns = Turns(memory_mb * _MB)
        self._latest: _Latest | None = None
        self._kept: dict[str, _Kept] = {}
        self._used_again: set[str] = set()
        self._said = False
        self._lock = threading.Lock()

    def observe(self, seen: Observed, facts: Facts) -> None:
        """Take what is needed of a tensor that is not empty, and compute the GEMMs that it completes.

        Under torch.func nothing is probed: what is seen there, as a rule, is one sample of a batch.
        """
        value, (_, microbatch, call, pass_) = seen.value, seen.moment
        if microbatch or (pass_ == "eval" and not self._serves) or seen.tensor not in self._tiles:
            return
        if inside_transform():
            return
        with self._lock, outside_transforms():
            if call:
                if pass_ == "forward":
                    self._used_again.add(seen.layer)
                return
            if value.dtype not in SAMPLED_DTYPES or seen.gemm_dtype not in SAMPLED_DTYPES:
                return
            key = _Key(seen.layer, seen.tensor, seen.moment, facts.seq)
            tiles = self._tiles[seen.tensor]
            take = partial(take_operand, as_matrix(value), seen.tensor, seen.gemm_dtype, facts, tiles)
            if pass_ == "recompute":
                self._see_again(key, take)
            else:
                {"x": self._see_x, "w": self._see_w, "dy": self._see_dy}[seen.tensor](key, take)

    def end_step(self, step: int) -> None:
        """Drop whatever the step has left."""
        with self._lock:
            self.drop()
            shortage = self._turns.end_step()
            if shortage is None or self._said:
                return
            self._said = True
        many = f"{shortage.n_taken} layers a sampled step, in turn" if shortage.n_taken else "no layer"
        self._note(
            f"samples of {shortage.n_layers} layers need {shortage.n_bytes / _MB:.1f} MB from forward to backward, "
            f"probe_memory is {self._memory_mb} MB: dgrad and wgrad are probed for {many}",
            step,
        )

    def drop(self) -> None:
        """Keep nothing. Takes no lock: in the child of a fork whoever held it is gone."""
        self._latest = None
        self._kept.clear()
        self._used_again.clear()

    def _see_x(self, key: _Key, take: _Take) -> None:
        columns = take("column") if self._turns.ask(key.layer) else None
        self._latest = _Latest(key, take("row"), columns, needs_recompute=not torch.is_grad_enabled())

    def _see_w(self, key: _Key, take: _Take) -> None:
        x, self._latest = self._latest, None
        if x is None or x.key.layer != key.layer:
            return
        w = take("row")
        if w.depth != x.lines.depth:
            return
        self._add(x.key, "fprop", x.lines, w)
        if x.columns is not None:
            kept = _Kept(x.columns, take("column"), x.needs_recompute)
            if self._turns.take(key.layer, kept.x.n_bytes + kept.w.n_bytes):
                self._kept[key.layer] = kept

    def _see_dy(self, key: _Key, take: _Take) -> None:
        kept = self._kept.pop(key.layer, None)
        if kept is None:
            return
        lines, columns = take("row"), take("column")
        if (lines.depth, columns.depth) == (kept.w.depth, kept.x.depth):
            self._add(key, "dgrad", lines, kept.w)
            self._add(key, "wgrad", columns, kept.x)

    def _see_again(self, key: _Key, take: _Take) -> None:
        """A recomputed pass: where gradients will come from it, make sure that it is the one that was sampled.

        Recomputation runs backwards, so the first use to be recomputed need not be the first.
        """
        kept = self._kept.get(key.layer)
        if kept is None or key.tensor != "x" or not kept.needs_recompute or key.layer not in self._used_again:
            return
        if not torch.equal(take("column").sample, kept.x.sample):
            del self._kept[key.layer]

    def _add(self, key: _Key, gemm: str, first: Operand, second: Operand) -> None:
        self._add_rows(*key, gemm_cells(gemm, first, second, self._recipes, self._accumulations))
