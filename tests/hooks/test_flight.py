"""The flight recorder: steps before a trigger are there in full, all others as if they had not been sampled."""

from __future__ import annotations

import math
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from fp8debug.config import CaptureOptions
from fp8debug.hooks.clock import FinishedStep
from fp8debug.hooks.flight import MB, FlightRecorder
from fp8debug.hooks.measure.loading import load_engine
from fp8debug.hooks.observed import Observed
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.scalars import DeviceScalar
from fp8debug.hooks.training import StepReport
from fp8debug.recipes import parse_recipe
from fp8debug.replay import Moment

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded


def net(width: int = 64) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).bfloat16()


def train(model: nn.Module, n_steps: int, factors: dict[int, float] | None = None, width: int = 64) -> None:
    """Train on random data; in the steps of `factors` one element of the input is multiplied."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(n_steps):
        x = torch.randn(64, width, generator=torch.Generator().manual_seed(step)).bfloat16()
        x[3, 5] *= (factors or {}).get(step, 1.0)
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def full_steps(recorded: Recorded) -> list[int]:
    """Steps whose records say that they are sampled; every table has to agree."""
    steps = {row["step"] for row in recorded.rows("tensors", sampled=True)}
    assert steps == {row["step"] for row in recorded.rows("steps", sampled=True)}
    assert steps == {row["step"] for row in recorded.rows("errors")}
    counted = {row["seq"] for row in recorded.rows("histograms")}
    assert counted == {row["seq"] for row in recorded.rows("tensors", sampled=True)}
    return sorted(steps)


@pytest.mark.captures(
    case="flight recorder",
    how="--trigger nan,spike,amax>16x; every step is counted, the last ones wait in --flight-memory MB",
    sees="errors and histograms of the steps up to the trigger, whatever --every was; health and scales of all others",
    limits="channels, blocks and gemms in scheduled steps only; at most one write in as many steps as fit the memory, "
    "further triggers are counted in an event; with SIGKILL the steps that wait are lost",
)
def test_the_step_before_the_nan_is_there(
    attach: Attach, recorded: Recorded, capfd: pytest.CaptureFixture[str]
) -> None:
    model = net()
    with attach(model, every=1000, trigger="nan", flight_memory=1, quiet=False, detail="channels"):
        train(model, 40, {30: math.nan})
    full = full_steps(recorded)
    assert full[0] == 0, "as scheduled"
    assert full[-1] == 30 and full[1:] == list(range(full[1], 31)) and len(full) > 5
    # Nothing of the health is lost: a run without a flight recorder has the same rows.
    assert [row["step"] for row in sorted(recorded.rows("steps"), key=lambda r: r["step"])] == list(range(40))
    assert len(recorded.rows("tensors")) == 40 * 6
    thin = recorded.rows("tensors", sampled=False)
    assert {(row["approx"], row["checksum"]) for row in thin} == {(None, None)}
    assert {row["step"] for row in recorded.rows("scales", recipe="delayed")} == set(range(40))
    (event,) = recorded.rows("events", kind="trigger")
    assert (event["kind"], event["step"], event["layer"], event["tensor"]) == ("trigger", 30, "0", "x")
    assert event["message"].startswith("nan: 1 values are NaN or Inf")
    assert event["message"].endswith(f"steps {full[1]} to 30 written in full")
    said = capfd.readouterr().err
    assert f"the last {len(full) - 1} steps fit 1 MB; every step is counted, which takes about" in said
    assert said.count("flight recorder") == 1 and "trigger nan at step 30 in 0 x" in said
    assert {row["step"] for row in recorded.rows("channels")} == {0}


def test_the_rows_are_those_of_a_run_without(attach: Attach, recorded: Recorded, tmp_path: Any) -> None:
    """What falls out of memory is what unsampled steps have; what is written in full is what sampled steps have."""
    contents = []
    for name, options in (
        ("a", {"trigger": "nan", "every": 1000, "flight_memory": 1}),
        ("b", {"every": 1000, "steps": "0,25-30"}),
    ):
        model = net()
        with attach(model, run_dir=tmp_path / name, detail="none", **options):
            train(model, 31, {30: math.nan})
        run = type(recorded)(tmp_path / name)
        steps = full_steps(run)
        wanted = [s for s in range(31) if s == 0 or s >= 25 or s < steps[1]]
        content: dict[str, Any] = {}
        for table in ("tensors", "scales", "errors", "histograms"):
            rows = run.rows(table)
            if table != "histograms":
                rows = [r for r in rows if r["step"] in wanted and r["step"] not in range(steps[1], 25)]
                rows.sort(key=lambda r: (r["seq"], r.get("recipe") or "", r.get("fmt") or ""))
            content[table] = rows
        contents.append(content)
    first, second = contents
    n = len(second["errors"])
    assert n > 0
    for table in ("tensors", "scales"):
        keys = {(r["seq"], r.get("recipe"), r.get("fmt")) for r in first[table]}
        other = [r for r in second[table] if (r["seq"], r.get("recipe"), r.get("fmt")) in keys]
        # Every step was counted, so health is known that this engine does not take in unsampled steps.
        known = [{k: r[k] for k in o if o[k] is not None} for r, o in zip(first[table], other, strict=True)]
        assert repr(known) == repr([{k: v for k, v in o.items() if v is not None} for o in other]) and other
    kept = {r["seq"] for r in second["errors"]}
    assert repr([r for r in first["errors"] if r["seq"] in kept]) == repr(second["errors"])


def test_scheduled_steps_do_not_wait(attach: Attach, recorded: Recorded) -> None:
    model = net()
    with attach(model, every=5, trigger="nan", flight_memory=64):
        train(model, 12)
    assert full_steps(recorded) == [0, 5, 10]
    assert len(recorded.rows("tensors")) == 12 * 6 and not recorded.rows("events", kind="trigger")


def test_memory_is_bounded(attach: Attach, recorded: Recorded) -> None:
    """By our count at every moment, and as Python counts: arrays, rows and all."""
    model, width = net(256), 256
    with attach(model, every=1000, trigger="nan", flight_memory=3, detail="none") as session:
        flight, recorder = session._flight, session._recorder
        assert flight is not None
        held, traced = [], []
        tracemalloc.start()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(40):
            x = torch.randn(64, width, generator=torch.Generator().manual_seed(step)).bfloat16()
            model(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            held.append(flight.n_bytes)
            traced.append(tracemalloc.get_traced_memory()[0])
            session._writer.submit(flight.take_out())
        tracemalloc.stop()
        assert recorder.n_bytes < MB
    largest_record = 256 * 256 * 12
    assert max(held) <= 3 * MB + largest_record
    full_at = next(i for i, n in enumerate(held) if n > 2.5 * MB)
    assert full_at < 25
    assert max(traced[full_at:]) - min(traced[full_at:]) < 1.5 * MB, "no growth once it is full"
    assert max(traced) < 3 * MB + 5 * MB, "what the process needs beside it is a few MB"
    assert full_steps(recorded) == [0]


def test_a_step_larger_than_the_memory(attach: Attach, recorded: Recorded, capfd: pytest.CaptureFixture[str]) -> None:
    """Health is all there; that nothing can be kept is said once."""
    torch.manual_seed(2)
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(24)]).bfloat16()
    with attach(model, every=1000, trigger="nan", flight_memory=1, detail="none", quiet=False):
        train(model, 5, {4: math.nan}, width=128)
    assert full_steps(recorded) == [0]
    assert len(recorded.rows("tensors")) == 5 * 72
    kinds = {event["kind"] for event in recorded.rows("events")}
    assert {"not_captured", "trigger"} <= kinds
    assert capfd.readouterr().err.count("one step takes more than flight_memory (1 MB)") == 1


def test_a_failed_training_writes_what_waits(attach: Attach, recorded: Recorded) -> None:
    model = net()
    with pytest.raises(ZeroDivisionError), attach(model, every=1000, trigger="nan", tensors="x"):
        train(model, 6)
        raise ZeroDivisionError
    assert full_steps(recorded) == [0, 1, 2, 3, 4, 5]
    (event,) = recorded.rows("events", kind="trigger")
    assert event["message"] == "the training failed; steps 1 to 5 written in full"


def test_evaluation_and_details_keep_their_schedule(attach: Attach, recorded: Recorded) -> None:
    """FP32 records are made at once, with their tensor at hand: no details for that."""
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, every=4, trigger="nan", detail="channels,blocks", recipes=["current", "mxfp8"]):
        for step in range(6):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            model.eval()(torch.randn(4, 8))
            model.train()
            assert step >= 0
    assert {row["step"] for row in recorded.rows("tensors", pass_="eval")} == {0, 4}
    assert {row["step"] for row in recorded.rows("channels")} == {0, 4} == {r["step"] for r in recorded.rows("blocks")}


class Flight:
    """A recorder fed by hand: one tensor a step, whose amax is chosen."""

    def __init__(self, trigger: str, memory_mb: int = 64) -> None:
        self.recorder = Recorder(load_engine("torch"), [parse_recipe("current")], "step", 0, 0)
        self.said: list[str] = []
        options = CaptureOptions(trigger=tuple(trigger.split(",")), flight_memory=memory_mb)
        self.flight = FlightRecorder(options, self.recorder, self.said.append)
        self.step = 0

    def end(self, amax: float = 1.0, report: StepReport | None = None) -> None:
        value = torch.linspace(-1, 1, 64).bfloat16() * amax
        self.recorder.record(
            Observed("fc", "dy", value, torch.bfloat16, Moment(self.step, 0, 0, "backward")), sampled=True, raw=False
        )
        finished = FinishedStep(self.step, 1, False, 0.0, 1.0)
        report = report or StepReport()
        row = partial(report.row, finished, segment=0, rank=0)
        self.flight.end_step(finished, row, report, scheduled=False)
        self.step += 1

    def written(self) -> tuple[list[int], list[tuple[int, str]]]:
        """Steps that left in full so far, and the triggers so far."""
        self.flight._out.extend(self.recorder.take_batch())
        out = self.flight.take_out()
        steps = sorted({row[1] for row in out.rows["errors"].rows})
        events = out.rows["events"].to_arrow()
        rows = [] if events is None else events.to_pylist()
        return steps, [(row["step"], row["message"]) for row in rows if row["kind"] == "trigger"]


def report_of(loss: float, grad_norm: float) -> StepReport:
    return StepReport(losses=[(loss, 1.0)], gradient_norms=[grad_norm])


def test_an_amax_jumps() -> None:
    """More than 16 times the median; not in the first 16 steps, nor where the median is zero."""
    flight = Flight("amax>16x")
    amaxes = [1.0, 2.0] * 7 + [100.0, 1.0, 2.0, 24.0]
    for amax in amaxes:
        flight.end(amax)
    steps, _ = flight.written()
    assert steps == []
    flight.end(33.0)  # the median of the 18 before is 2
    steps, ((step, message),) = flight.written()
    assert steps == list(range(19)) and step == 18
    assert message == "amax>16x: amax jumped to 33, 16.5 times its median 2; steps 0 to 18 written in full"
    silent = Flight("amax>16x")
    for amax in [0.0] * 20 + [1.0]:
        silent.end(amax)
    assert silent.written() == ([], [])


@pytest.mark.parametrize(
    ("numbers", "fires_at"),
    [
        ([(2.0 + 0.01 * (i % 5), 1.0) for i in range(20)] + [(2.3, 1.0)], 20),
        ([(2.0 + 0.01 * (i % 5), 1.0) for i in range(20)] + [(2.1, 1.0)], None),  # 5 %: no spike, however quiet it was
        ([(9.0 - 0.4 * i, 1.0) for i in range(20)] + [(9.0, 1.0)], None),  # falling fast: nothing to compare with
        ([(2.0, 1.0)] * 10 + [(90.0, 90.0)], None),  # warm-up
        ([(2.0, 1.0 + 0.3 * (i % 3)) for i in range(20)] + [(2.0, 2.5)], None),
        ([(2.0, 1.0 + 0.3 * (i % 3)) for i in range(20)] + [(2.0, 7.0)], 20),
        ([(-3.0, 1.0)] * 20 + [(-2.9, 1.0)], None),
        ([(-3.0, 1.0)] * 20 + [(0.0, 1.0)], 20),
    ],
)
def test_a_spike(numbers: list[tuple[float, float]], fires_at: int | None) -> None:
    flight = Flight("spike")
    for loss, grad_norm in numbers:
        flight.end(report=report_of(loss, grad_norm))
    assert [step for step, _ in flight.written()[1]] == ([] if fires_at is None else [fires_at])


def test_the_rule_of_the_spike_by_its_formula() -> None:
    """Median + 8 * 1.4826 * MAD, computed here by numpy over the last 64 values."""
    rng = np.random.default_rng(0)
    values = 2 + 0.05 * rng.standard_normal(100)
    window = values[-64:]
    deviation = 1.4826 * np.median(np.abs(window - np.median(window)))
    bound = float(np.median(window) + 8 * deviation)
    assert deviation * 8 > 0.1 * np.median(window)
    for last, n_fired in ((bound * (1 + 1e-9), 1), (bound * (1 - 1e-9), 0)):
        flight = Flight("spike")
        for value in [*values, last]:
            flight.end(report=report_of(float(value), 1.0))
        assert len(flight.written()[1]) == n_fired


def test_nan_fires_once_and_again_after_recovery() -> None:
    flight = Flight("nan", memory_mb=1)
    k = 5
    FlightKeeps.patch(flight, k)
    for amax in (1, math.nan, math.nan, math.nan):
        flight.end(amax)
    steps, events = flight.written()
    assert (steps, [step for step, _ in events]) == ([0, 1], [1]), "NaN that stays is one trigger"
    for amax in (1, math.inf, 1, math.nan):  # steps 4 to 7; the next write is allowed from step 6 on
        flight.end(amax)
    steps, events = flight.written()
    assert steps == [2, 3, 4, 5, 6, 7], "the ring starts anew after a write"
    assert [step for step, _ in events] == [5, 7]
    assert events[0][1].startswith("1 more at step 5 (nan: 64 values are NaN or Inf), not written")
    flight.end(1)
    flight.end(math.nan)
    flight.flight.close(failed=False)
    steps, events = flight.written()
    assert steps == [] and [message[:17] for _, message in events] == ["1 more at step 9 "]


class FlightKeeps(FlightRecorder):
    """A recorder that says how many steps it keeps."""

    kept: int

    @classmethod
    def patch(cls, flight: Flight, n_steps: int) -> None:
        flight.flight.__class__ = cls
        flight.flight.kept = n_steps  # type: ignore[attr-defined]

    @property
    def n_kept_steps(self) -> int:
        return self.kept


class Late(DeviceScalar):
    """A loss on its way from an accelerator. Reading it too early would wait."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.arrived = False

    @property
    def is_here(self) -> bool:
        return self.arrived

    def __float__(self) -> float:
        assert self.arrived, "waited for in a hook"
        return self.value


def test_numbers_on_their_way_are_not_waited_for() -> None:
    flight = Flight("nan")
    late = [Late(1.0), Late(math.nan), Late(1.0)]
    for number in late[:2]:
        flight.end(report=StepReport(losses=[(number, 1.0)]))
    assert flight.written() == ([], [])
    late[0].arrived = late[1].arrived = True
    flight.end(report=StepReport(losses=[(late[2], 1.0)]))
    steps, ((step, message),) = flight.written()
    assert (steps, step) == ([0, 1, 2], 1), "one step later"
    assert message == "nan: the loss is nan; steps 0 to 2 written in full"


def test_an_amax_that_jumps_for_long_is_written_once_and_quotes_the_step() -> None:
    flight = Flight("amax>16x,nan")
    FlightKeeps.patch(flight, 4)
    loss = Late(3.25)
    for step in range(40):
        late = StepReport(losses=[(loss, 1.0)], gradient_norms=[0.5]) if step == 20 else None
        flight.end(100.0 if step >= 20 and step % 5 == 0 else math.nan if step == 36 else 1.0, late)
    loss.arrived = True
    _, events = flight.written()
    assert [step for step, _ in events] == [20, 25, 36], "what is not finite is not held up"
    assert events[0][1].startswith(
        "amax>16x: amax jumped to 100, 100.0 times its median 1 (at loss 3.25, gradient norm 0.5); steps 0 to 20"
    )
    assert events[1][1].startswith("3 more from step 25 to 35 (amax>16x: ")
    assert events[1][1].endswith("not written: at most one write in 4 steps, and of an amax alone in 64")


def test_the_training_sees_nothing_of_it(attach: Attach) -> None:
    weights = []
    for options in ({}, {"trigger": "nan,spike,amax>16x", "every": 3}):
        model = net()
        if options:
            with attach(model, **options):
                train(model, 6)
        else:
            train(model, 6)
        weights.append(list(model.parameters()))
    assert all(map(torch.equal, *weights))
