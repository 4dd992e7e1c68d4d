"""`attach(..., on_scalars=fn)`: the figures of the record, in the training's thread, and never at its cost."""

from __future__ import annotations

import gc
import math
import re
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.errors import UsageError
from fp8debug.hooks.live_scalars import ScalarFeed
from fp8debug.hooks.measure.health import Health
from fp8debug.hooks.measure.loading import load_engine
from fp8debug.hooks.measurement import Measurement
from fp8debug.hooks.rows import RowMaker
from fp8debug.hooks.training import StepReport
from fp8debug.recipes import parse_recipe
from fp8debug.replay import Moment

OPERANDS = [f"{layer}/{tensor}" for layer in ("0", "2") for tensor in ("x", "w", "dy")]


class Heard:
    """Takes what it is called with."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.scalars: list[dict[str, float]] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, step: int, scalars: Mapping[str, float]) -> None:
        self.steps.append(step)
        self.scalars.append(dict(scalars))
        self.threads.add(threading.current_thread())


def train(run_dir: Path, n_steps: int = 5, *, bad_step: int = -1, **options: Any) -> tuple[list[float], list[Any]]:
    """Losses of each step and the weights after the last one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    losses = []
    with fp8debug.attach(model, run_dir=run_dir, every=2, detail=(), engine="torch", quiet=False, **options):
        for step in range(n_steps):
            x = torch.randn(16, 32, dtype=torch.bfloat16)
            if step == bad_step:
                x[0, :3] = math.inf
            loss = model(x * torch.rand(())).float().square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    return losses, [p.detach().clone() for p in model.parameters()]


def rows(run_dir: Path, query: str) -> list[Any]:
    """A query on the files themselves; `T(name)` stands for a table."""
    relation = duckdb.sql(
        re.sub(r"T\((\w+)\)", rf"read_parquet('{run_dir}/\1/*/*.parquet', hive_partitioning = false)", query)
    )
    assert relation is not None
    return relation.fetchall()


def test_figures_are_those_of_the_record(tmp_path: Path) -> None:
    heard = Heard()
    losses, _ = train(tmp_path / "run", recipes=("current", "delayed"), on_scalars=heard)
    assert heard.steps == [0, 1, 2, 3, 4]
    assert heard.threads == {threading.current_thread()}
    assert [scalars["loss"] for scalars in heard.scalars] == losses
    steps = rows(tmp_path / "run", "select grad_norm, lr from T(steps) order by step")
    assert [(scalars["grad_norm"], scalars["lr"]) for scalars in heard.scalars] == steps
    assert [scalars["n_nonfinite"] for scalars in heard.scalars] == [0.0] * 5
    lost = rows(
        tmp_path / "run",
        """select step, layer || '/' || tensor, n_underflow / n_nonzero, 10 * log10(sum_x2 / sum_err2)
        from T(errors) where recipe = 'current' and not alternate order by step""",
    )
    gaps = rows(
        tmp_path / "run",
        """select s.step, s.layer || '/' || s.tensor,
            log2(s.scale::double / (if(s.fmt = 'E4M3', 448, 57344) / t.amax)::float)
        from T(scales) s join T(tensors) t using (seq) where s.status = 'ok' and not alternate order by s.step""",
    )
    for step, scalars in enumerate(heard.scalars):
        expected = {f"underflow/{name}": value for at, name, value, _ in lost if at == step}
        expected |= {f"sqnr_db/{name}": value for at, name, _, value in lost if at == step}
        of_step = {f"scale_gap_bits/{name}": value for at, name, value in gaps if at == step}
        worst = {"worst_scale_gap_bits": max(of_step.values())} if of_step else {}
        if expected:
            assert len(expected) == 2 * len(OPERANDS)
            worst["worst_underflow"] = max(v for name, v in expected.items() if name.startswith("underflow"))
            worst["worst_sqnr_db"] = min(v for name, v in expected.items() if name.startswith("sqnr"))
            expected |= of_step
        named = {name: value for name, value in scalars.items() if "/" in name or name.startswith("worst")}
        assert named == pytest.approx(expected | worst, abs=1e-6)
    assert [("worst_sqnr_db" in scalars) for scalars in heard.scalars] == [True, False, True, False, True]


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    heard = Heard()
    train(tmp_path / "run", 2, bad_step=1, on_scalars=heard, tensors="x")
    assert heard.scalars[0]["n_nonfinite"] == 0
    counted = "sum(coalesce(n_nan, 0) + coalesce(n_posinf, 0) + coalesce(n_neginf, 0))"
    expected = rows(tmp_path / "run", f"select {counted} from T(tensors) where step = 1")[0][0]
    assert heard.scalars[1]["n_nonfinite"] == expected > 3


def test_the_training_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    losses, weights = train(tmp_path / "without")
    heard_losses, heard_weights = train(tmp_path / "with", on_scalars=Heard())
    assert heard_losses == losses
    assert all(torch.equal(a, b) for a, b in zip(heard_weights, weights, strict=True))
    for table in ("tensors", "errors", "scales"):
        counts = [rows(tmp_path / run, f"select count(*), sum(seq) from T({table})") for run in ("without", "with")]
        assert counts[0] == counts[1]


def test_an_error_in_the_function_ends_its_calls_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def breaks(step: int, scalars: Mapping[str, float]) -> None:
        calls.append(step)
        raise ConnectionError("no server")

    losses, _ = train(tmp_path / "run", on_scalars=breaks)
    assert calls == [0] and len(losses) == 5
    said = "on_scalars is called no more after step 0: ConnectionError: no server at test_live_scalars.py:"
    assert capsys.readouterr().err.count(said) == 1
    events = rows(tmp_path / "run", "select kind, step, message from T(events)")
    assert [(kind, step) for kind, step, message in events if message.startswith(said)] == [("on_scalars_failed", 0)]
    assert rows(tmp_path / "run", "select count(*) from T(steps)") == [(5,)]


def test_no_tensor_is_kept(tmp_path: Path) -> None:
    model = nn.Linear(32, 32)
    seen: list[Any] = []
    alive: list[int] = []

    def count(step: int, scalars: Mapping[str, float]) -> None:
        gc.collect()
        alive.append(sum(reference() is not None for reference in seen[:-1]))

    with fp8debug.attach(
        model, run_dir=tmp_path / "run", every=1, detail=(), engine="torch", quiet=True, on_scalars=count
    ) as session:
        for _ in range(4):
            x = torch.randn(16, 32)
            y = model(x)
            y.sum().backward()
            seen += [weakref.ref(x), weakref.ref(y)]
            del x, y
            session.step()
    assert alive == [0, 0, 0, 0]


def test_a_flight_recorder_counts_every_step_and_only_sampled_ones_are_told_whole(tmp_path: Path) -> None:
    heard = Heard()
    train(tmp_path / "run", trigger="nan", on_scalars=heard)
    assert heard.steps == [0, 1, 2, 3, 4]
    assert [("worst_sqnr_db" in scalars) for scalars in heard.scalars] == [True, False, True, False, True]


@pytest.mark.parametrize(("every_rank", "expected"), [(False, []), (True, [0, 1])])
def test_other_ranks_are_silent_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_rank: bool, expected: list[int]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "FP8DEBUG_LAUNCH": "a"}.items():
        monkeypatch.setenv(name, value)
    heard = Heard()
    train(tmp_path / "run", 2, on_scalars=heard, scalars_every_rank=every_rank)
    assert heard.steps == expected


def test_what_is_no_function(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="on_scalars: got 'print'; expected a function"):
        train(tmp_path / "run", on_scalars="print")
    assert not (tmp_path / "run").exists()


# What the documentation shows ----------------------------------------------------------------------------------------


class Board:
    """Stands in for a run of wandb."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []
        self.metrics: list[tuple[str, str]] = []

    def define_metric(self, name: str, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, scalars: dict[str, float]) -> None:
        self.logged.append(scalars)


def test_examples_of_the_documentation(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (repository / "docs" / "live.md").read_text(encoding="utf-8")
    tensorboard, wandb = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    board, names = Board(), dict[str, Any]()
    for block in (wandb, tensorboard):
        model = nn.Sequential(nn.Linear(16, 16))
        names = {"fp8debug": fp8debug, "model": model, "run": board}
        exec(block, names)
        with names["session"] as session:
            for _ in range(2):
                model(torch.ones(16, 16)).mean().backward()
                session.step()
    names["writer"].close()
    assert board.metrics == [("fp8/*", "fp8/step")]
    assert [scalars["fp8/step"] for scalars in board.logged] == [0, 1]
    assert "fp8/underflow/0/w" in board.logged[0]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = EventAccumulator(str(tmp_path / "tensorboard"))
    written.Reload()
    assert {"fp8/loss", "fp8/underflow/0/w"} <= set(written.Tags()["scalars"])
    assert [event.step for event in written.Scalars("fp8/loss")] == [0, 1]


# What is on its way from a device ------------------------------------------------------------------------------------


class Arriving:
    """Stands in for numbers that are copied from a device."""

    n_bytes = 100

    def __init__(self, health: Any) -> None:
        self.is_here = False
        self._health = health

    def reading(self) -> Any:
        assert self.is_here, "waited for"
        return self._health, None, (0, None)


class LateReport(StepReport):
    """Whose loss has not come yet."""

    is_here = False


def test_nothing_is_waited_for_and_order_is_kept() -> None:
    heard = Heard()
    recipes = [parse_recipe("delayed")]
    maker = RowMaker(load_engine("torch"), recipes, "microbatch", 0, 0)
    feed = ScalarFeed(heard, recipes, ("forward",), lambda text, step: None)
    maker.tap = feed
    health = Health(n=512, n_zero=0, n_neg_zero=0, n_nan=2, n_posinf=0, n_neginf=0, amin=0.1, amax=1.0)
    coming = []
    for step in range(3):
        arriving = Arriving(health)
        coming.append(arriving)
        moment = Moment(step, 0, 0, "forward")
        maker.add_later(
            Measurement(step, "fc", "x", moment, (16, 32), torch.bfloat16, torch.bfloat16, health, None, (None, None),
                        arriving=arriving)  # type: ignore[arg-type]
        )  # fmt: skip
        feed.end_step(step, LateReport() if step == 1 else StepReport(), sampled=False)
        maker.end_step()
        maker.make_arrived()
        feed.deliver()
    assert heard.steps == []
    coming[1].is_here = True  # not its turn
    maker.make_arrived()
    feed.deliver()
    assert heard.steps == []
    coming[0].is_here = True
    maker.make_arrived()
    feed.deliver()
    assert heard.steps == [0]  # of step 1 the loss is missing
    assert maker.n_bytes >= 100
    coming[2].is_here = True
    maker.make_arrived()
    feed.deliver()
    assert heard.steps == [0]
    feed.deliver(wait=True)
    assert heard.steps == [0, 1, 2]
    assert [scalars["n_nonfinite"] for scalars in heard.scalars] == [2.0, 2.0, 2.0]
