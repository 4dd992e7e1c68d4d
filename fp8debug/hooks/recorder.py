"""From a tensor at one moment to a measurement: health always, counts and raw values when the step asks for them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from fp8debug.hooks.details import is_detailed
from fp8debug.hooks.dtypes import dtype_word
from fp8debug.hooks.masks import RowMasks, ranges
from fp8debug.hooks.measure.codes import route
from fp8debug.hooks.measure.engine import Engine, UnsupportedDtype
from fp8debug.hooks.measure.layout import row_blocks
from fp8debug.hooks.measurement import Measurement, Missed, RowClass, is_replica, scaling_amax, tensor_head
from fp8debug.hooks.noticed import Noticed
from fp8debug.hooks.observed import Observed, Payload
from fp8debug.hooks.payloads import PayloadFacts, decoded, facts_of, is_codes, payload_of
from fp8debug.hooks.rows import RowMaker, RowTap
from fp8debug.hooks.scales import InForce
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.taking import Taking
from fp8debug.hooks.transforms import is_plain, outside_transforms, unwrapped
from fp8debug.hooks.weight_sample import weight_sample
from fp8debug.recipes import Recipe
from fp8debug.replay import Moment, ScaleInForce

VALUES_BLOCK = 1 << 18
"""Elements of raw values that are copied at once."""

EventCells = tuple[int | None, str, str | None, str | None, str]
"""step, kind, layer, tensor, message"""


class Facts(NamedTuple):
    """What is known of a record as a whole, for who looks further into the tensor at once."""

    seq: int
    scales: list[InForce]
    """In force, one for each recipe with one scale a tensor and format."""
    amax: float
    """Largest magnitude as scaling kernels see it: infinite where the tensor has an infinity."""
    amin: float
    """Smallest non-zero magnitude; 0 when there is none."""


class Recorder:
    """Measures observed tensors; the rows wait in a `RowMaker` until the session flushes them."""

    def __init__(
        self,
        engine: Engine,
        recipes: Sequence[Recipe],
        rolls: str,
        segment: int,
        rank: int,
        detail: Sequence[str] = (),
    ) -> None:
        self._taking = Taking(engine, note=lambda message: self.event("slow_counting", message, step=None))
        self._rows = RowMaker(engine, recipes, rolls, segment, rank, detail)
        self._has_details = bool(detail)
        self._segment = segment
        self._rank = rank
        self._seq = itertools.count()
        self._lock = threading.RLock()  # rows may have to leave while a record is being made
        self._unsupported: set[tuple[str, str | None]] = set()
        self.noticed = Noticed()
        self._rows.look = self.noticed.look
        self.masks = RowMasks()
        self.fired: set[str] = set()
        self.n_records = 0
        self.takes_details: Callable[[Moment], bool] = lambda moment: moment.pass_ != "eval"
        """Which passes of sampled steps have details, where there are any."""

        self.make_room: Callable[[], None] = lambda: None
        """Called where much has been collected: hands it over when it is too much."""

    @property
    def n_bytes(self) -> int:
        """Rough memory held, in bytes."""
        return self._rows.n_bytes

    def record(self, seen: Observed, *, sampled: bool, raw: bool) -> Facts | None:
        """Take everything that is wanted of one tensor; nothing of it is kept afterwards.

        What the framework's GEMM read of it, where that is given, becomes a record of its own.

        Returns:
            What is known of it, when details were asked for and the step is sampled; of the training passes of the
            first micro-batch, recomputed ones included. None for an empty tensor, for one that cannot be measured and
            for codes alone.
        """
        facts = None
        with self._lock, outside_transforms():
            value = unwrapped(seen.value).detach()
            self.fired.add(seen.layer)
            payload = payload_of(seen, value)
            self.noticed.precision(seen, has_payload=payload is not None)
            alone = payload is not None and is_codes(value)
            known = None
            if payload is not None:
                summed = sampled and not is_replica(seen.placement, self._rank)
                known = facts_of(payload, None if alone else value, seen.gemm_dtype, summed=summed)
            if not alone:
                facts = self._record_value(seen, value, known, sampled=sampled, raw=raw)
            if payload is not None and known is not None:
                self._record_payload(seen, payload, known, None if alone else value, sampled=sampled, raw=raw)
        return facts

    def _record_value(
        self, seen: Observed, value: torch.Tensor, payload: PayloadFacts | None, *, sampled: bool, raw: bool
    ) -> Facts | None:
        seq = self._next_seq()
        try:
            if not is_plain(value):
                raise UnsupportedDtype(f"{type(value).__name__} cannot be measured: it is made of several tensors")
            taken = self._measure(seq, seen, value, sampled, payload)
        except UnsupportedDtype as error:
            self._add_unsupported(seq, seen, str(error))
            return None
        facts, moment = None, seen.moment
        at_once = sampled and self._has_details and moment.microbatch == 0 and self.takes_details(moment)
        at_once = at_once and not is_replica(seen.placement, self._rank)
        if sampled and (at_once or self._needs_values(value, seen.gemm_dtype)):
            taken = taken.arrived()
        if sampled:
            taken = taken._replace(detailed=at_once, classes=self._classes(taken, value))
        if at_once or (taken.counted is not None and taken.counted.approx is not None):
            in_force = self._rows.add_now(taken, value)
            if at_once and taken.health.n:
                facts = Facts(seq, in_force, scaling_amax(taken.health) or 0.0, taken.health.amin or 0.0)
        else:
            self._rows.add_later(taken)
        if raw:
            self._add_values(seq, seen, value)
        return facts

    def _record_payload(
        self,
        seen: Observed,
        payload: Payload,
        facts: PayloadFacts,
        value: torch.Tensor | None,
        *,
        sampled: bool,
        raw: bool,
    ) -> None:
        seq = self._next_seq()
        try:
            codes = self._taking.of_codes(payload, sampled=sampled)
        except UnsupportedDtype as error:
            self._add_unsupported(seq, seen, str(error))
            return
        held = payload.codes.detach()
        taken = Measurement(
            seq,
            seen.layer,
            seen.tensor,
            seen.moment,
            tuple(held.shape),
            held.dtype,
            held.dtype,
            codes.health,
            codes.counted,
            codes.nonfinite_rows,
            (),
            seen.precision_asked,
            seen.placement,
            payload=facts,
            is_payload=True,
            arriving=codes.arriving,
        )
        self._rows.add_later(taken)
        if sampled and self._follows(taken) and (sample := weight_sample(value, payload, facts)) is not None:
            self._rows.add_weight_sample(taken, sample)
        if raw:
            self._add_values(seq, seen, held, partial(decoded, fmt=payload.fmt))

    def _follows(self, taken: Measurement) -> bool:
        """Whether this payload is of a weight that is followed over the steps: once a step, and of one replica."""
        moment = taken.moment
        return (
            taken.tensor == "w"
            and is_detailed(moment)
            and self.takes_details(moment)
            and not is_replica(taken.placement, self._rank)
        )

    def _classes(self, taken: Measurement, value: torch.Tensor) -> list[RowClass]:
        """Valid and padding rows of a sampled tensor, measured apart, where a mask says which they are."""
        if taken.counted is None or is_replica(taken.placement, self._rank):
            return []
        valid = self.masks.of(taken.layer, taken.tensor, taken.moment, value)
        if valid is None:
            return []
        rows = value.reshape(-1, value.shape[-1])
        return [self._class(taken, rows, word, mask) for word, mask in (("valid", valid), ("padding", ~valid))]

    def _class(self, taken: Measurement, rows: torch.Tensor, word: str, mask: torch.Tensor) -> RowClass:
        part = rows[mask]
        counted, (n_bad, first) = self._taking.of_rows(part, taken.gemm_dtype)
        if first is not None:  # as a row of the whole tensor
            first = int(torch.nonzero(mask)[first])
        made = taken._replace(
            seq=self._next_seq(),
            shape=tuple(part.shape),
            health=counted.health,
            counted=counted,
            nonfinite_rows=(n_bad, first),
            row_class=word,
            rows=ranges(mask),
        )
        return RowClass(made, part if counted.approx is not None else None)

    def _next_seq(self) -> int:
        self.n_records += 1
        return next(self._seq)

    def miss(
        self,
        layer: str,
        tensor: str,
        moment: Moment,
        framework: Sequence[ScaleInForce],
        amax: Callable[[], float] | None,
    ) -> None:
        """Take what is known of a pass whose tensor nobody could see; see `Observer.miss`."""
        with self._lock:
            self.fired.add(layer)
            self._rows.add_missed(Missed(next(self._seq), layer, tensor, moment, framework, amax))

    def add_cells(
        self, table: str, layer: str, tensor: str, moment: Moment, seq: int, cells: Iterable[tuple[Any, ...]]
    ) -> None:
        """Add rows about one record to `table`; `cells` are those after the record key, one tuple a row."""
        key = self._rows.key(seq, layer, tensor, moment)
        made = [(*key, *row) for row in cells]
        with self._lock:
            rows = self._rows.batch.rows[table]
            for row in made:
                rows.append(row)

    def event(
        self, kind: str, message: str, *, step: int | None, layer: str | None = None, tensor: str | None = None
    ) -> None:
        """Note something that went wrong or is missing."""
        self._rows.batch.rows["events"].append(self.event_row(kind, message, step, layer, tensor))

    def event_row(
        self, kind: str, message: str, step: int | None, layer: str | None = None, tensor: str | None = None
    ) -> tuple[Any, ...]:
        """A row of the table `events`, of now."""
        return (self._segment, step, self._rank, time.time(), kind, layer, tensor, message)

    def add_score(self, task: str, score: float, *, step: int) -> None:
        """Note a benchmark score that the training gave."""
        self._rows.batch.rows["evals"].append((self._segment, step, self._rank, time.time(), task, score))

    def event_later(
        self, kind: str, message: Callable[[], str], *, step: int | None, layer: str | None, tensor: str | None
    ) -> None:
        """Note something whose words are only known on the writer's thread, where waiting for a device hurts nobody."""
        head = (self._segment, step, self._rank, time.time(), kind, layer, tensor)
        self._rows.batch.rows["events"].append_deferred(lambda: (*head, message()))

    def add_late_events(self, cells: Callable[[], Iterable[EventCells]]) -> None:
        """Add events that are found on the writer's thread."""

        def rows() -> list[tuple[Any, ...]]:
            return [
                (self._segment, step, self._rank, time.time(), kind, layer, tensor, message)
                for step, kind, layer, tensor, message in cells()
            ]

        self._rows.batch.rows["events"].append_late(rows)

    def note_unsupported(self, layer: str, tensor: str | None, reason: str, step: int) -> None:
        """Note, once, that a tensor (None: any) of a layer cannot be measured."""
        if (layer, tensor) not in self._unsupported:
            self._unsupported.add((layer, tensor))
            self.event("unsupported", reason, step=step, layer=layer, tensor=tensor)

    def add_step(self, row: Callable[[], tuple[Any, ...]]) -> None:
        """Add the row of a step that is over; it is made on the writer's thread."""
        self._rows.batch.rows["steps"].append_deferred(row)

    def break_histories(self, is_broken: Callable[[str, str], bool]) -> None:
        """These (layer, tensor) will not be recorded for a while: whatever remembers them says so from here on."""
        with self._lock:
            self._rows.break_histories(is_broken)

    def set_details(self, recipes: Sequence[Recipe], detail: Sequence[str]) -> None:
        """Take these details from now on."""
        with self._lock:
            self._rows.set_details(recipes, detail)
            self._has_details = bool(detail)

    def feed(self, tap: RowTap) -> None:
        """Let `tap` see records as their rows are made, and the ends of steps among them."""
        self._rows.tap = tap

    def end_step(self) -> None:
        """All that was seen so far belongs to steps that are over."""
        with self._lock:
            self._rows.end_step()

    def make_arrived(self) -> None:
        """Make rows now that would be made at the next flush, of what has come; waits for nothing."""
        with self._lock:
            self._rows.make_arrived()

    def catch_up(self) -> None:
        """Make rows now of all that was seen; waits for what is on its way."""
        with self._lock:
            self._rows.catch_up()

    def take_batch(self, *, wait: bool = True) -> Batch:
        """Hand over the rows collected so far; see `RowMaker.take_batch`."""
        with self._lock:
            return self._rows.take_batch(wait=wait)

    def _measure(
        self, seq: int, seen: Observed, value: torch.Tensor, sampled: bool, payload: PayloadFacts | None
    ) -> Measurement:
        taken = self._taking.of_tensor(value, seen.gemm_dtype, sampled=sampled)
        return Measurement(
            seq,
            seen.layer,
            seen.tensor,
            seen.moment,
            tuple(value.shape),
            value.dtype,
            seen.gemm_dtype,
            taken.health,
            taken.counted,
            taken.nonfinite_rows,
            seen.framework,
            seen.precision_asked,
            seen.placement,
            payload=payload,
            arriving=taken.arriving,
        )

    def _needs_values(self, value: torch.Tensor, gemm_dtype: torch.dtype) -> bool:
        """Whether a sampled tensor is needed beside its histogram: for errors of FP32 values, or of rows by class."""
        return route(value.dtype, gemm_dtype).approx is not None or self.masks.n_given > 0

    def _add_values(
        self,
        seq: int,
        seen: Observed,
        value: torch.Tensor,
        decode: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows,
    ) -> None:
        key = self._rows.key(seq, seen.layer, seen.tensor, seen.moment)
        numbers = itertools.count()
        for block in row_blocks(value, VALUES_BLOCK):
            # A copy even where nothing is to be converted: the tensor may change, or go, before it is written.
            host = decode(block).to("cpu", torch.float32, copy=True).numpy()
            rows = self._rows.batch.rows["values"]
            for row in host:
                rows.append((*key, next(numbers), row))
            rows.array_bytes += host.nbytes
            self.make_room()

    def _add_unsupported(self, seq: int, seen: Observed, reason: str) -> None:
        value = seen.value
        key = self._rows.key(seq, seen.layer, seen.tensor, seen.moment)
        tensors = self._rows.batch.rows["tensors"]
        dtypes = (dtype_word(value.dtype), dtype_word(seen.gemm_dtype))
        head = tensor_head(value.shape, *dtypes, self._rank, seen.placement, seen.precision_asked)
        told = (*key, *head, False, f"unsupported dtype: {reason}")
        tensors.append((*told, *(None,) * (len(tensors.column_names) - len(told))))
        self.note_unsupported(seen.layer, seen.tensor, reason, seen.moment.step)
