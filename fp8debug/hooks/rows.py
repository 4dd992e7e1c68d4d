"""From measurements to rows: scales in force, error sums, and the cells of every table, in order of observation.

A hook runs between two GEMMs, with caches full of other things; what need not happen there waits here and is done for
many measurements at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from fp8debug.formats import Format
from fp8debug.hooks.details import DetailMaker, is_detailed
from fp8debug.hooks.measure.engine import Counted, Engine
from fp8debug.hooks.measure.health import Health
from fp8debug.hooks.measurement import Measurement, Missed, RowClass, is_replica, scaling_amax, tensor_row
from fp8debug.hooks.payload_watch import PayloadWatch
from fp8debug.hooks.payloads import PayloadFacts, error_sums
from fp8debug.hooks.scales import InForce, ScaleBook, Sourced
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.weight_sample import WeightSample
from fp8debug.metrics import ErrorSums
from fp8debug.recipes import Recipe, TensorRecipe
from fp8debug.replay import Moment, ScaleInForce


class RowTap(Protocol):
    """Sees records as their rows are made, in order of observation, on whatever thread makes them."""

    def saw(self, taken: Measurement, observed: Sequence[tuple[ScaleInForce, str]]) -> None:
        """A tensor in high precision, all its rows, and the scales that it has a row of, each with its source."""

    def lost(self, taken: Measurement, sums: Iterable[tuple[InForce, ErrorSums]]) -> None:
        """What it loses under each known scale, when it was sampled."""

    def step_is_whole(self) -> None:
        """All that was seen before the end of a step has been made."""


class StepOver(NamedTuple):
    """The end of a step, in its place among measurements."""


class RowMaker:
    """Turns measurements into rows of a batch. Simulated histories live here: order matters."""

    def __init__(
        self,
        engine: Engine,
        recipes: Sequence[Recipe],
        rolls: str,
        segment: int,
        rank: int,
        detail: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._scales = ScaleBook(recipes, rolls)
        self._details = DetailMaker(engine, recipes, detail)
        self._segment = segment
        self._rank = rank
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._payloads = PayloadWatch()
        self.batch = Batch()
        self._into = self.batch
        """Where rows are made; guarded, as histories are, by the lock."""
        self._making = threading.RLock()
        self._late: deque[tuple[Batch, deque[_Waiting]]] = deque()
        """Batches handed over whose rows are still to be made, on the writer's thread as a rule."""
        self._n_arriving = 0
        self.tap: RowTap | None = None
        """Who sees records as their rows are made."""
        self.look: Callable[[Measurement], Iterable[tuple[str, str]]] = lambda taken: ()
        """Events, (kind, message), about a measurement; asked in order of observation."""

    @property
    def n_bytes(self) -> int:
        """Rough memory held, in bytes."""
        return self.batch.n_bytes + self._waiting_bytes

    def add_later(self, taken: Measurement) -> None:
        """Keep a measurement until `catch_up`."""
        self._waiting.append(taken)
        self._n_arriving += taken.arriving is not None
        self._waiting_bytes += _bytes_of(taken)

    def add_missed(self, missed: Missed) -> None:
        """Keep, in its place, a pass that histories must know of."""
        self._waiting.append(missed)

    def end_step(self) -> None:
        """Let the tap know, in its place, that a step is over."""
        self._waiting.append(StepOver())

    def make_arrived(self) -> None:
        """Make the rows of what has come, up to the first that is still on its way; waits for nothing.

        While the writer's thread makes older ones, nothing is made.
        """
        if self._late or not self._making.acquire(blocking=False):
            return
        try:
            self._into = self.batch
            while self._waiting and _is_here(self._waiting[0]):
                taken = self._waiting.popleft()
                if isinstance(taken, Measurement):
                    self._n_arriving -= taken.arriving is not None
                    self._waiting_bytes -= _bytes_of(taken)
                self._make_one(taken)
        finally:
            self._making.release()

    def add_now(self, taken: Measurement, value: torch.Tensor) -> list[InForce]:
        """Make rows at once, those included that need the `value`; catches up first.

        Returns:
            The scales in force, one for each recipe with one scale a tensor and format; empty for an empty tensor, and
            when the record was not counted.
        """
        with self._making:
            self.catch_up()
            return self._add(taken, value)

    def catch_up(self) -> None:
        """Make the rows of all that waits; itself waits for what is on its way from a device."""
        self._waiting_bytes = self._n_arriving = 0
        with self._making:
            while self._late:
                self._make_late()
            self._into = self.batch
            self._make(self._waiting)

    def break_histories(self, is_broken: Callable[[str, str], bool]) -> None:
        """As in `ScaleSimulator`, after all that waits."""
        self.catch_up()
        self._scales.break_histories(is_broken)

    def set_details(self, recipes: Sequence[Recipe], detail: Sequence[str]) -> None:
        """Measure these details from now on."""
        self.catch_up()
        self._details = DetailMaker(self._engine, recipes, detail)

    def take_batch(self, *, wait: bool = True) -> Batch:
        """Hand over all rows.

        Args:
            wait: for what is on its way from a device; else its rows, and all that come after them, are made when the
                batch is finished.
        """
        if wait or not (self._n_arriving or self._late):
            self.catch_up()
            batch, self.batch = self.batch, Batch()
            return batch
        batch, self.batch = self.batch, Batch()
        self._late.append((batch, self._waiting))
        batch.finish_by(partial(self._finish, batch), self._waiting_bytes)
        self._waiting, self._waiting_bytes, self._n_arriving = deque(), 0, 0
        return batch

    def _finish(self, batch: Batch) -> None:
        """Make the rows of this batch, those of older ones first: histories go by the order of observation."""
        with self._making:
            while any(late is batch for late, _ in self._late):
                self._make_late()

    def _make_late(self) -> None:
        self._into, waiting = self._late[0]
        try:
            self._make(waiting)
        finally:
            self._late.popleft()

    def _make(self, waiting: deque[_Waiting]) -> None:
        while waiting:
            self._make_one(waiting.popleft())

    def _make_one(self, taken: _Waiting) -> None:
        if isinstance(taken, Missed):
            self._add_missed(taken)
        elif isinstance(taken, Measurement):
            self._add(taken.arrived(), None)
        elif self.tap is not None:
            self.tap.step_is_whole()

    def key(self, seq: int, layer: str, tensor: str, moment: Moment) -> tuple[Any, ...]:
        """The record key's cells."""
        step, microbatch, call, pass_ = moment
        return (self._segment, step, microbatch, call, pass_, self._rank, layer, tensor, seq)

    def _add_missed(self, missed: Missed) -> None:
        seq, layer, tensor, moment, framework, amax = missed
        observed = self._scales.observe(layer, tensor, moment, None if amax is None else amax(), framework)
        self._add_scale_rows(self.key(seq, layer, tensor, moment), observed)

    def _add(self, taken: Measurement, value: torch.Tensor | None) -> list[InForce]:
        key = self.key(taken.seq, taken.layer, taken.tensor, taken.moment)
        health, counted = taken.health, taken.counted
        self._into.rows["tensors"].append(tensor_row(key, taken))
        for kind, message in self.look(taken):
            event = (self._segment, taken.moment.step, self._rank, time.time(), kind)
            self._into.rows["events"].append((*event, taken.layer, taken.tensor, message))
        if taken.is_payload:
            self._add_payload(key, taken)
            return []
        own = taken.payload.in_force() if taken.payload is not None and not taken.framework else None
        framework = taken.framework if own is None or not self._scales.knows(own.recipe) else (own,)
        if is_replica(taken.placement, self._rank):
            self._add_scale_rows(key, [(scale, "framework") for scale in framework])
            return []
        amax = scaling_amax(health)
        observed = self._scales.observe(taken.layer, taken.tensor, taken.moment, amax, framework)
        self._add_scale_rows(key, observed)
        if self.tap is not None:
            self.tap.saw(taken, observed)
        if counted is None or not health.n:
            return []
        sourced = self._scales.in_force(taken.tensor, amax or 0.0, observed)
        for part in (RowClass(taken, value), *taken.classes):
            self._add_sums(part, sourced, health)
        if taken.payload is not None and taken.payload.lost is not None:
            self._add_lost(key, taken.payload)
        in_force = [s.in_force for s in sourced]
        if value is not None and taken.detailed and is_detailed(taken.moment):
            self._details.add(self._into, key, taken.tensor, value, taken.gemm_dtype, amax or 0.0, in_force)
        return in_force

    def _add_sums(self, part: RowClass, sourced: Sequence[Sourced], whole: Health) -> None:
        """The error sums and the histogram of a tensor, or of some of its rows under the scales of the whole."""
        taken, counted = part.taken, part.taken.counted
        key = self.key(taken.seq, taken.layer, taken.tensor, taken.moment)
        if taken.row_class != "all":
            self._into.rows["tensors"].append(tensor_row(key, taken))
        if counted is None or not taken.health.n:
            return
        value = part.value if counted.approx is not None else None
        made = self._add_errors(key, value, counted, sourced, whole)
        if self.tap is not None and taken.row_class == "all":
            self.tap.lost(taken, made)
        self._add_histogram(taken.seq, "high", counted)

    def _add_histogram(self, seq: int, word: str, counted: Counted) -> None:
        self._into.histograms.append((self._segment, self._rank, seq, word), counted.values, counted.counts)

    def _add_payload(self, key: tuple[Any, ...], taken: Measurement) -> None:
        """What there is to say of codes alone; no history sees them, and no error is theirs."""
        facts, counted = taken.payload, taken.counted
        assert facts is not None
        own = facts.in_force()
        given = [scale for scale in facts.scales if own is None or (scale.recipe, scale.fmt) != (own.recipe, own.fmt)]
        self._add_scale_rows(key, [(scale, "framework") for scale in (*given, *((own,) if own else ()))])
        if facts.block_scales is not None:
            self._add_block_scales(key, facts, taken.health.n)
        if counted is None or not taken.health.n:
            return
        if not is_replica(taken.placement, self._rank):
            self._add_histogram(taken.seq, "payload", counted)
        if taken.health.amax == 0:  # zeros are the same bytes under any scale
            return
        message = self._payloads.look((taken.layer, taken.tensor), taken.moment, counted.checksum, facts)
        if message is not None:
            event = (self._segment, taken.moment.step, self._rank, time.time(), "payload_differs")
            self._into.rows["events"].append((*event, taken.layer, taken.tensor, message))

    def add_weight_sample(self, taken: Measurement, sample: WeightSample) -> None:
        """Add a row of `wsample`, about the record of a payload."""
        rows = self.batch.rows["wsample"]
        rows.append_deferred(sample.row(self.key(taken.seq, taken.layer, taken.tensor, taken.moment)))
        rows.array_bytes += sample.n_bytes

    def _add_block_scales(self, key: tuple[Any, ...], facts: PayloadFacts, n: int) -> None:
        assert facts.block_scales is not None
        nothing = ScaleInForce(
            facts.recipe or "", facts.fmt, False, None, None, None, None, None, None, None, "per_block"
        )
        self._add_scale_rows(key, [(nothing, "framework")])
        smallest, median, largest = facts.block_scales.tolist()
        cells: dict[str, Any] = {
            "recipe": facts.recipe,
            "fmt": facts.fmt.name,
            "alternate": False,
            "sample": "all",
            "n_total": n,
            "n_blocks": facts.n_blocks,
            "scale_min": smallest,
            "scale_median": median,
            "scale_max": largest,
        }
        rows = self._into.rows["blocks"]
        rows.append((*key, *(cells.get(name) for name in rows.column_names[len(key) :])))

    def _add_lost(self, key: tuple[Any, ...], facts: PayloadFacts) -> None:
        """What the framework's own cast lost of this record."""
        assert facts.lost is not None
        sums, own = error_sums(facts.lost), facts.in_force()
        head = (facts.recipe, facts.fmt.name, False, "payload", "rank", None if own is None else own.scale)
        self._into.rows["errors"].append((*key, *head, *_sum_cells(sums)[:-3], None, None, None, None))

    def _add_scale_rows(self, key: tuple[Any, ...], observed: Sequence[tuple[ScaleInForce, str]]) -> None:
        rows = self._into.rows["scales"]
        for s, source in observed:
            rows.append(
                (
                    *key,
                    s.recipe,
                    s.fmt.name,
                    s.alternate,
                    source,
                    "rank",
                    s.scale,
                    s.scale_inv,
                    s.amax_used,
                    s.history_len,
                    s.history_zeros,
                    s.n_rolls,
                    s.ran,
                    s.set_at_step,
                    s.status,
                )
            )

    def _add_errors(
        self,
        key: tuple[Any, ...],
        value: torch.Tensor | None,
        counted: Counted,
        sourced: Sequence[Sourced],
        whole: Health,
    ) -> list[tuple[InForce, ErrorSums]]:
        known = [s for s in sourced if s.in_force.scale is not None]
        found = self._error_sums(value, counted, [s.in_force for s in known], whole)
        rows = self._into.rows["errors"]
        for ((recipe, fmt, alternate, scale), source, scope), sums in zip(known, found, strict=True):
            head = (recipe.text, fmt.name, alternate, source, scope, scale)
            rows.append((*key, *head, *_sum_cells(sums), counted.approx))
        return [(s.in_force, sums) for s, sums in zip(known, found, strict=True)]

    def _error_sums(
        self, value: torch.Tensor | None, counted: Counted, in_force: Sequence[InForce], whole: Health
    ) -> list[ErrorSums]:
        """Sums for each scale, which is known; of the elements of `value` where there is one, else of the histogram."""
        amax, amin = scaling_amax(whole) or 0.0, whole.amin or 0.0
        found: dict[int, ErrorSums] = {}
        requests: dict[int, tuple[np.float32, Format]] = {}
        for i, (recipe, fmt, _, scale) in enumerate(in_force):
            if isinstance(recipe, TensorRecipe) and not recipe.is_plain:
                quantize = partial(recipe.round, amax=amax, amin=amin, fmt=fmt)
                found[i] = self._engine.rounded_sums(counted, quantize, value)
            elif scale is not None:
                requests[i] = (scale, fmt)
        wanted = list(requests.values())
        if value is None:
            sums = self._engine.error_sums(counted.values, counted.counts, wanted)
        else:
            sums = self._engine.tensor_error_sums(value, wanted, counted)
        found |= zip(requests, sums, strict=True)
        return [found[i] for i in range(len(in_force))]


_Waiting = Measurement | Missed | StepOver


def _is_here(taken: _Waiting) -> bool:
    return not isinstance(taken, Measurement) or taken.arriving is None or taken.arriving.is_here


def _bytes_of(taken: Measurement) -> int:
    """Rough memory of what a measurement holds, or will hold."""
    counted = () if taken.counted is None else (taken.counted, *(part.taken.counted for part in taken.classes))
    arrays = sum(one.values.nbytes + one.counts.nbytes for one in counted if one is not None)
    return arrays + (0 if taken.arriving is None else taken.arriving.n_bytes)


def _sum_cells(s: ErrorSums) -> tuple[Any, ...]:
    return (
        s.n,
        s.n_nonzero,
        s.n_underflow,
        s.n_overflow,
        s.sum_x2,
        s.sum_q2,
        s.sum_xq,
        s.sum_err2,
        s.n_low,
        s.low_sum_x2,
        s.low_sum_err2,
    )
