"""Rows of blocks and channels: of which records, in which words, and that they say what the tensor was."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fp8debug.blocks import oriented, quantize_blocks, rotate
from fp8debug.formats import E4M3, Format
from fp8debug.gemms import GEMMS
from fp8debug.hooks.measure import load_engine
from fp8debug.hooks.observed import Observed
from fp8debug.hooks.recorder import Facts, Recorder
from fp8debug.recipes import BlockRecipe, parse_recipe
from fp8debug.replay import Moment, ScaleInForce

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

BF16, FP32 = torch.bfloat16, torch.float32
ENGINES = pytest.mark.parametrize("engine", ["numba", "torch"])


class Twice(nn.Module):
    """A layer used twice, the second time under checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(lambda h: self.layer(h).exp(), self.layer(x), use_reentrant=False)
        return y


def test_the_first_use_in_the_first_microbatch_of_sampled_steps(attach: Attach, recorded: Recorded) -> None:
    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, every=2, recipes=["current", "mxfp8"]):
        for _ in range(3):
            for _ in range(2):
                model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            model.eval()(torch.randn(4, 8))
            model.train()
    first = [
        f"{step}/0/0 {use}" for step in (0, 2) for use in ("forward layer.x", "forward layer.w", "backward layer.dy")
    ]
    for table in ("blocks", "channels"):
        assert sorted(set(recorded.keys(table))) == sorted(first)
    passes = Counter(row["pass"] for row in recorded.rows("tensors", sampled=True))
    assert passes["recompute"] and passes["eval"] and passes["forward"] > 4, "others were sampled without details"


@pytest.mark.parametrize("detail", [(), ("blocks",), ("channels",), ("gemms",)], ids=str)
def test_only_what_is_asked_for(detail: tuple[str, ...], attach: Attach, recorded: Recorded) -> None:
    layer = nn.Linear(8, 4)
    with attach(layer, detail=detail, recipes=["current", "mxfp8"]):
        layer(torch.randn(4, 8)).sum().backward()
    assert len(recorded.rows("errors")) == 4
    for table in ("blocks", "channels"):
        assert bool(recorded.rows(table)) is (table in detail)


@ENGINES
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_blocks_are_those_of_the_operands(autocast: bool, engine: str, attach: Attach, recorded: Recorded) -> None:
    """Every orientation that a GEMM reads, in every format, as the GEMM reads it."""
    torch.manual_seed(3)
    layer = nn.Linear(40, 24, bias=False)
    x = torch.randn(2, 10, 40)
    seen = {"x": x.reshape(20, 40), "w": layer.weight.detach().clone()}
    with (
        attach(layer, engine=engine, recipes=["mxfp8:fp8_format=HYBRID", "nvfp4", "block"]),
        torch.autocast("cpu", BF16, enabled=autocast),
    ):
        y = layer(x)
        y.register_hook(lambda g: seen.update(dy=g.reshape(20, 24)))
        (y.float() ** 2).sum().backward()
    rows = recorded.rows("blocks")
    keys = {(r["tensor"], r["orientation"]): r["gemm"] for r in rows}
    assert keys == {operand: gemm for gemm, operands in GEMMS.items() for operand in operands}
    by_recipe = Counter((r["recipe"], r["fmt"], r["tensor"], r["alternate"]) for r in rows)
    assert by_recipe == {
        **{("mxfp8:fp8_format=HYBRID", "E4M3", t, False): 2 for t in "xw"},
        ("mxfp8:fp8_format=HYBRID", "E5M2", "dy", False): 2, ("mxfp8:fp8_format=HYBRID", "E4M3", "dy", True): 2,
        **{("nvfp4", "E2M1", t, False): 2 for t in ("x", "w", "dy")},
        **{("block", "E4M3", t, False): 2 for t in ("x", "w", "dy")},
    }  # fmt: skip
    for row in rows:
        recipe = parse_recipe(row["recipe"])
        assert isinstance(recipe, BlockRecipe)
        fmt = next(f for f, _ in recipe.formats_for(row["tensor"]) if f.name == row["fmt"])
        read = seen[row["tensor"]].to(BF16 if autocast else FP32)
        x2, err2 = loss(recipe, row["tensor"], row["orientation"], fmt, read)
        assert row["sum_x2"] == pytest.approx(x2, rel=1e-12)
        assert row["sum_err2"] == pytest.approx(err2, rel=1e-12)
        assert (row["sample"], row["n_total"], row["n"], row["approx"]) == ("all", read.numel(), read.numel(), None)


def loss(recipe: BlockRecipe, tensor: str, orientation: str, fmt: Format, t: Tensor) -> tuple[float, float]:
    """Signal and noise of the whole operand by the reference."""
    x = read = oriented(t.float().numpy(), orientation)
    if recipe.rotates(tensor, orientation):
        read, x = rotate(x), rotate(x, rounded=False)
    q = quantize_blocks(read, recipe, tensor, fmt).values
    return math.fsum((x.astype(float) ** 2).flat), math.fsum(((x.astype(float) - q) ** 2).flat)


@ENGINES
def test_channels_in_words(engine: str, attach: Attach, recorded: Recorded) -> None:
    """A token of zeros, an outlier feature, a feature that underflows: named, and counted apart."""
    layer = nn.Linear(4, 3, bias=False)
    nn.init.ones_(layer.weight)
    x = torch.ones(6, 4)
    x[:, 1] = 448
    x[:, 3] = 2.0**-20
    x[4, 3] = 1.25
    x[2] = 0
    with attach(layer, engine=engine, tensors=["x"], recipes=["current", "static:scale=0.5"]):
        layer(x)
    rows = {(r["axis"], r["measure"], r["recipe"]): r for r in recorded.rows("channels")}
    assert set(rows) == {
        (axis, *what)
        for axis in ("token", "K")
        for what in [
            ("amax", None),
            *((m, r) for m in ("sqnr_db", "underflow") for r in ("current", "static:scale=0.5")),
        ]
    }
    token = rows["token", "amax", None]
    assert (token["n_channels"], token["n_zero"], token["n_exact"], token["scale"]) == (6, 1, None, None)
    assert (token["bins"], token["counts"]) == ([math.floor(4 * math.log2(448))], [5])
    assert (token["worst_channel"], token["worst_value"]) == (0, 448.0)
    size = rows["K", "amax", None]
    assert (size["bins"], size["counts"], size["worst_channel"]) == ([0, 1, 35], [2, 1, 1], 1)
    lost = rows["K", "underflow", "current"]
    assert (lost["fmt"], lost["alternate"], lost["scale"], lost["sample"]) == ("E4M3", False, 1.0, "all")
    assert (lost["bins"], lost["counts"], lost["worst_channel"], lost["worst_value"]) == ([0, 80], [3, 1], 3, 0.8)
    exact = rows["K", "sqnr_db", "current"]
    noise = 4 * 2.0**-40
    assert (exact["n_exact"], exact["counts"], exact["worst_channel"]) == (3, [1], 3)
    assert exact["worst_value"] == pytest.approx(10 * math.log10((1.25**2 + noise) / noise))
    assert rows["K", "sqnr_db", "static:scale=0.5"]["n_exact"] == 3
    assert rows["token", "sqnr_db", "current"]["n_exact"] == 1


def test_axes_of_results_too(attach: Attach, recorded: Recorded) -> None:
    """y, dx and dw are no operands of the GEMMs: they have channels and no blocks."""
    layer = nn.Linear(8, 4)
    with attach(layer, tensors=["y", "dx", "dw"], recipes=["mxfp8"]):
        layer(torch.randn(3, 8, requires_grad=True)).sum().backward()
    assert {(r["tensor"], r["axis"]) for r in recorded.rows("channels")} == {
        ("y", "token"), ("y", "N"), ("dx", "token"), ("dx", "K"), ("dw", "N"), ("dw", "K"),
    }  # fmt: skip
    assert not recorded.parts("blocks")


def test_large_operands_are_sampled_and_say_so(attach: Attach, recorded: Recorded) -> None:
    layer = nn.Linear(1024, 16, bias=False)
    with attach(layer, tensors=["x"], engine="numba", recipes=["current", "mxfp8"]):
        layer(torch.randn(1024, 1024))
    rows = {r["orientation"]: r for r in recorded.rows("blocks")}
    for row in rows.values():
        assert (row["sample"], row["n_total"], row["n"]) == ("lines 256:384,768:896", 1 << 20, 1 << 18)
    assert {(r["axis"], r["sample"], r["n_channels"]) for r in recorded.rows("channels")} == {
        ("token", "lines 256:384,768:896", 256), ("K", "lines 256:384,768:896", 1024),
    }  # fmt: skip


@ENGINES
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int32, torch.complex64], ids=str)
def test_payload_and_other_numbers_have_no_details(dtype: torch.dtype, engine: str) -> None:
    recorder = Recorder(
        load_engine(engine), [parse_recipe("current"), parse_recipe("mxfp8")], "step", 0, 0, ("blocks", "channels")
    )
    t = torch.ones(4, 8).to(dtype)
    facts = recorder.record(Observed("fc", "x", t, BF16, Moment(0, 0, 0, "forward")), sampled=True, raw=False)
    batch = recorder.take_batch()
    events = batch.rows["events"].to_arrow()
    if dtype is torch.float8_e4m3fn:
        assert facts is None and events is None and batch.rows["errors"].to_arrow() is None
    else:
        assert facts is None and events is not None and events["kind"].to_pylist() == ["unsupported"]
    assert batch.rows["blocks"].to_arrow() is batch.rows["channels"].to_arrow() is None


def test_facts_are_for_who_looks_further() -> None:
    recipes = [parse_recipe(text) for text in ("current", "delayed", "static:scale=2", "coat", "mxfp8")]
    recorder = Recorder(load_engine("torch"), recipes, "microbatch", 0, 0, ("gemms",))
    t = torch.tensor([[0.5, -2.0, 0.0, math.inf]])

    def record(
        pass_: str, *, microbatch: int = 0, call: int = 0, sampled: bool = True, value: Tensor = t
    ) -> Facts | None:
        seen = Observed("fc", "x", value, BF16, Moment(0, microbatch, call, pass_))
        return recorder.record(seen, sampled=sampled, raw=False)

    facts = record("forward")
    assert facts is not None
    assert (facts.seq, facts.amax, facts.amin) == (0, math.inf, 0.5)
    scales = [(recipe.text, fmt.name, alternate, float(scale or 0)) for recipe, fmt, alternate, scale in facts.scales]
    assert scales == [
        ("current", "E4M3", False, 1), ("static:scale=2.0", "E4M3", False, 2), ("coat", "E4M3", False, 1),
        ("delayed", "E4M3", False, 1),
    ]  # fmt: skip
    assert record("recompute") is not None and record("forward", call=1) is not None
    assert record("eval") is record("forward", microbatch=1) is record("forward", sampled=False) is None
    assert record("forward", value=torch.empty(0, 4)) is None


@ENGINES
def test_recipes_that_round_in_their_own_way(engine: str, attach: Attach, recorded: Recorded) -> None:
    """bf16 of FP32 values, which the histogram has rounded already, and COAT's expansion, element by element."""
    layer = nn.Linear(64, 8, bias=False)
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) * 1e-3
    x[0, :3] = torch.tensor([0.0, math.nan, math.inf])
    with attach(layer, engine=engine, tensors=["x"], recipes=["bf16", "coat", "coat:k=1.5"]):
        layer(x)
    errors = {r["recipe"]: r for r in recorded.rows("errors")}
    v = x.numpy()[np.isfinite(x.numpy())]
    for text, row in errors.items():
        recipe = parse_recipe(text)
        fmt = recipe.formats_for("x")[0][0]
        magnitudes = np.abs(v[v != 0])
        q = (
            torch.from_numpy(v).to(BF16).float().numpy()
            if text == "bf16"
            else recipe.round(v, math.inf, float(magnitudes.min()), fmt)[0]  # type: ignore[attr-defined]
        )
        assert (row["n"], row["n_nonzero"], row["fmt"], row["approx"]) == (v.size, v.size - 1, fmt.name, "bf16")
        for name, values in (("x2", v.astype(float) ** 2), ("err2", (v.astype(float) - q) ** 2)):
            assert row[f"sum_{name}"] == pytest.approx(math.fsum(values), rel=1e-12), (text, name)
    assert errors["bf16"]["sum_err2"] > 0 == errors["bf16"]["low_sum_err2"]


def given(recipe: str, fmt: Format, scale: float) -> ScaleInForce:
    """A framework's scale."""
    return ScaleInForce(recipe, fmt, False, np.float32(scale), np.float32(1 / scale), 448 / scale, 16, 3, 13, 7, "ok")


def test_a_frameworks_scale_takes_the_place_of_the_simulated_one() -> None:
    recipes = [parse_recipe(text) for text in ("current", "delayed:amax_history_len=16", "mxfp8")]
    recorder = Recorder(load_engine("torch"), recipes, "microbatch", 0, 0)
    framework = (given("delayed:amax_history_len=16", E4M3, 4.0), given("delayed:margin=1", E4M3, 8.0))
    for scales in (framework, ()):
        seen = Observed("fc", "w", torch.full((4,), 3.0, dtype=BF16), BF16, Moment(0, 0, 0, "forward"), scales)
        recorder.record(seen, sampled=True, raw=False)
    batch = recorder.take_batch()
    scales_table, errors_table = batch.rows["scales"].to_arrow(), batch.rows["errors"].to_arrow()
    assert scales_table is not None and errors_table is not None
    cells = ("seq", "recipe", "fmt", "source", "scale")
    assert [tuple(r[c] for c in cells) for r in scales_table.to_pylist()] == [
        (0, "delayed:amax_history_len=16", "E4M3", "framework", 4.0), (0, "delayed:margin=1", "E4M3", "framework", 8.0),
        (1, "delayed:amax_history_len=16", "E4M3", "simulated", 1.0),
    ]  # fmt: skip
    assert scales_table.to_pylist()[0]["n_rolls"] == 13
    current = float(np.float32(448) / np.float32(3))
    assert [tuple(r[c] for c in cells) for r in errors_table.to_pylist()] == [
        (0, "current", "E4M3", "simulated", current),
        (0, "delayed:amax_history_len=16", "E4M3", "framework", 4.0), (0, "delayed:margin=1", "E4M3", "framework", 8.0),
        (1, "current", "E4M3", "simulated", current), (1, "delayed:amax_history_len=16", "E4M3", "simulated", 1.0),
    ]  # fmt: skip


def test_a_framework_may_give_scales_of_recipes_without_memory() -> None:
    recorder = Recorder(load_engine("torch"), [parse_recipe("current")], "step", 0, 0)
    seen = Observed("fc", "w", torch.ones(4), BF16, Moment(0, 0, 0, "forward"), (given("current", E4M3, 2.0),))
    recorder.record(seen, sampled=True, raw=False)
    errors = recorder.take_batch().rows["errors"].to_arrow()
    assert errors is not None
    assert [(r["recipe"], r["source"], r["scale"], r["sum_err2"]) for r in errors.to_pylist()] == [
        ("current", "framework", 2.0, 0)
    ]
