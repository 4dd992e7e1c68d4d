"""The table `gemms` of whole captures: every row follows from the raw operands, whatever the training does."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fp8debug.blocks import oriented, quantize_blocks, rotate
from fp8debug.formats import FORMATS
from fp8debug.gemms import GEMMS
from fp8debug.recipes import BlockRecipe, CurrentScaling, parse_recipe, scaled_cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hooks.conftest import Attach, Recorded

F32 = npt.NDArray[np.float32]
RECIPES = ["current", "delayed:amax_history_len=2", "block", "mxfp8", "nvfp4"]
KEY = ("segment", "step", "microbatch", "call", "rank", "layer")


def operands(run: Recorded) -> dict[tuple[Any, ...], F32]:
    """(key without pass, tensor) -> matrix as the GEMM reads it, of the training passes."""
    rows: dict[tuple[Any, ...], list[list[float]]] = {}
    dtypes = {(*(r[name] for name in KEY), r["tensor"]): r["gemm_dtype"] for r in run.rows("tensors")}
    for row in run.rows("values"):
        if row["pass"] in ("forward", "backward"):
            rows.setdefault((*(row[name] for name in KEY), row["tensor"]), []).append(row["values"])
    return {key: torch.tensor(matrix).to(getattr(torch, dtypes[key])).float().numpy() for key, matrix in rows.items()}


def lines_of(text: str) -> list[int]:
    """Lines that a part of the column `sample` names, such as `rows 0:4 of 9`."""
    ranges, total = text.split(" ", 1)[1].split(" of ")
    whole = list(range(int(total)))
    return [n for part in ranges.split(",") for n in whole[slice(*map(int, part.split(":")))]]


Scales = dict[tuple[Any, ...], float]


def scales_of(run: Recorded) -> Scales:
    """(key without pass, tensor, format) -> scale of delayed scaling, of the training passes."""
    rows = [row for row in run.rows("scales") if row["pass"] in ("forward", "backward")]
    return {(*(row[name] for name in KEY), row["tensor"], row["fmt"]): row["scale"] for row in rows}


def quantised(scales: Scales, key: tuple[Any, ...], row: dict[str, Any], place: int, whole: F32) -> F32:
    """The sampled lines of a whole operand, quantised as the row says."""
    name, orientation = GEMMS[row["gemm"]][place]
    fmt = FORMATS[row["other_fmt" if place else "fmt"]]
    recipe = parse_recipe(row["recipe"])
    lines = lines_of(row["sample"].split(", ")[place])
    amax = float(abs(whole).max())
    if isinstance(recipe, BlockRecipe):
        matrix = oriented(whole, orientation)
        if recipe.rotates(name, orientation):
            matrix = rotate(matrix)
            amax = float(abs(matrix[lines]).max())
        return quantize_blocks(matrix, recipe, name, fmt, amax).values[lines]
    if isinstance(recipe, CurrentScaling):
        return oriented(recipe.round(whole, amax, 0.0, fmt)[0], orientation)[lines]
    scale = np.float32(scales[*key, name, fmt.name])
    return oriented(scaled_cast(whole, scale, fmt)[0], orientation)[lines]


def check(run: Recorded) -> Counter[str]:
    """Recompute every row; returns how many there are of each GEMM."""
    known, scales = operands(run), scales_of(run)
    rows = run.rows("gemms")
    for row in rows:
        key = tuple(row[name] for name in KEY)
        whole = [known[(*key, name)] for name, _ in GEMMS[row["gemm"]]]
        columns = [
            oriented(m, orientation)[lines_of(part)].astype(np.float64)
            for m, (_, orientation), part in zip(whole, GEMMS[row["gemm"]], row["sample"].split(", "), strict=True)
        ]
        a, b = columns
        qa, qb = (quantised(scales, key, row, i, m).astype(np.float64) for i, m in enumerate(whole))
        y, q = a @ b.T, qa @ qb.T
        assert (row["n_rows"], row["n_columns"], row["depth"]) == (*y.shape, a.shape[1])
        assert (row["n"], row["n_nonfinite"]) == (y.size, 0)
        for name, value in (("y2", y * y), ("q2", q * q), ("yq", y * q), ("err2", (y - q) ** 2)):
            assert row[f"sum_{name}"] == pytest.approx(value.sum(), rel=1e-9, abs=1e-30), (key, row["gemm"], name)
        assert row["sum_x2w2"] == pytest.approx(((a * a) @ (b * b).T).sum(), rel=1e-9)
    return Counter(row["gemm"] for row in rows)


class Odd(nn.Module):
    """A layer used twice, two that share a weight, one that is frozen and one behind it that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(5, 40).requires_grad_(False)
        self.twice = nn.Linear(40, 40)
        self.a, self.b = nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.frozen(x)
        y: Tensor = self.b(self.a(self.twice(self.twice(h).relu())))
        return y


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_every_row_follows_from_the_operands(autocast: bool, attach: Attach, recorded: Recorded) -> None:
    torch.manual_seed(0)
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, recipes=RECIPES, raw_every=1):
        for step in range(3):
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    loss = model(torch.randn(3, 17, 5) * 2**step).float().square().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()(torch.randn(2, 5))
    assert recorded.manifest["status"] == "closed"
    n = 3 * len(RECIPES)
    assert check(recorded) == {"fprop": 4 * n, "dgrad": 3 * (n + 6), "wgrad": 3 * (n + 6)}
    rows = recorded.rows("gemms")
    assert {(r["microbatch"], r["call"]) for r in rows} == {(0, 0)}
    assert {(r["gemm"], r["tensor"], r["pass"]) for r in rows} == {
        ("fprop", "x", "forward"),
        ("dgrad", "dy", "backward"),
        ("wgrad", "dy", "backward"),
    }
    records = {(r["seq"], r["layer"], r["tensor"]) for r in recorded.rows("tensors")}
    assert {(r["seq"], r["layer"], r["tensor"]) for r in rows} <= records
    assert not [r for r in rows if r["layer"] == "frozen" and r["gemm"] != "fprop"]
    warm_up = [r for r in rows if r["recipe"].startswith("delayed") and r["step"] == 0]
    assert len(warm_up) == 4 + 3 * 4
    assert {r["scale"] for r in recorded.rows("scales", step=0, microbatch=0)} == {1.0}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("in_one", [True, False], ids=["one segment", "two segments"])
def test_checkpointing(reentrant: bool, in_one: bool, attach: Attach, recorded: Recorded) -> None:
    """Recomputed passes are not probed, and no dy meets the x of another pass."""
    torch.manual_seed(0)
    twice, once = nn.Linear(36, 36), nn.Linear(36, 36)
    model = nn.ModuleList([twice, once])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts: list[Callable[[Tensor], Tensor]] = [lambda h: once(twice(h)).relu(), lambda h: twice(h).relu()]
    if in_one:
        first, second = parts
        parts = [lambda h: second(first(h))]
    with attach(model, recipes=["current"], raw_every=1):
        for _ in range(2):
            h = torch.randn(40, 36, requires_grad=True)
            for part in parts:
                h = checkpoint(part, h, use_reentrant=reentrant)
            h.square().sum().backward()
            optimizer.step()
    layers = Counter((r["gemm"], r["layer"]) for r in recorded.rows("gemms", alternate=False))
    # With two reentrant segments the second use of `twice` is recomputed first: its first dy is of another x.
    n_twice = 0 if reentrant and not in_one else 2
    assert layers == Counter({("fprop", "0"): 2, ("fprop", "1"): 2, ("dgrad", "1"): 2, ("wgrad", "1"): 2}) + Counter(
        {("dgrad", "0"): n_twice, ("wgrad", "0"): n_twice}
    )
    assert check(recorded)["wgrad"] == 2 * (2 + n_twice)


def test_layers_take_turns(attach: Attach, recorded: Recorded) -> None:
    """Samples of three layers, each 2 MB, in 5 MB; it is said once."""
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with attach(model, recipes=["current"], probe_memory=5):
        for _ in range(3):
            model(torch.ones(1 << 16, 8, requires_grad=True)).sum().backward()
            optimizer.step()
    turns = [
        [r["layer"] for r in recorded.rows("gemms", step=step, gemm="wgrad", alternate=False)] for step in range(3)
    ]
    assert turns == [["1", "0"], ["2", "0"], ["2", "1"]]
    (event,) = recorded.rows("events", kind="probe_memory")
    assert "3 layers" in event["message"] and event["step"] == 0


def test_options(attach: Attach, recorded: Recorded) -> None:
    model = nn.Linear(200, 3)
    with attach(model, recipes=["current", "block", "mxfp8"], accumulation=["hopper-fast", "hopper-promoted"]):
        model(torch.randn(5, 200)).sum().backward()
    fprop = recorded.rows("gemms", gemm="fprop")
    assert [(r["recipe"], r["accumulation"]) for r in fprop] == [
        ("current", "hopper-fast"),
        ("current", "hopper-promoted"),
        ("block", "hopper-promoted"),
    ]


@pytest.mark.parametrize("options", [{"detail": ["blocks"]}, {"tensors": ["x", "dy"]}, {"every": 1000}])
def test_not_asked_for(options: dict[str, Any], attach: Attach, recorded: Recorded) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, **options):
        for _ in range(2):
            model(torch.randn(5, 4)).sum().backward()
            optimizer.step()
    n_sampled = 1 if "every" in options else 0
    assert {r["step"] for r in recorded.rows("gemms")} == set(range(n_sampled))


class Block(nn.Module):
    """One layer of a byte-level language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 96)
        self.norm = nn.LayerNorm(96)
        self.qkv, self.out = nn.Linear(96, 288), nn.Linear(96, 96)
        self.up, self.down = nn.Linear(96, 384), nn.Linear(384, 96)
        self.head = nn.Linear(96, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        h = h + self.down(nn.functional.gelu(self.up(self.norm(h))))
        y: Tensor = self.head(self.norm(h))
        return y


def test_estimates_on_real_activations(attach: Attach, recorded: Recorded) -> None:
    """A model that has learned some legal English: what the sample says of each result, and what is true.

    Of the head's dw a few rows carry nearly everything, those of frequent letters; a sample can only miss them.
    """
    torch.manual_seed(0)
    text = torch.tensor(list(Path(__file__).parents[2].joinpath("LICENSE").read_bytes()))
    model = Block()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with attach(model, recipes=["current", "block", "mxfp8"], steps="30", raw_every=30):
        for _ in range(31):
            starts = torch.randint(len(text) - 129, (8,))
            tokens = torch.stack([text[s : s + 129] for s in starts.tolist()])
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss.item() < 3.2
    errors: dict[tuple[str, str], list[float]] = {}
    known = operands(recorded)
    for row in recorded.rows("gemms", alternate=False):
        key = tuple(row[name] for name in KEY)
        whole = [known[(*key, name)] for name, _ in GEMMS[row["gemm"]]]
        sides = [oriented(m, o).astype(np.float64) for m, (_, o) in zip(whole, GEMMS[row["gemm"]], strict=True)]
        everything = {**row, "sample": ", ".join(f"lines 0:{len(m)} of {len(m)}" for m in sides)}
        qa, qb = (quantised({}, key, everything, i, m).astype(np.float64) for i, m in enumerate(whole))
        y = sides[0] @ sides[1].T
        true_db = 10 * math.log10((y**2).sum() / ((y - qa @ qb.T) ** 2).sum())
        sampled_db = 10 * math.log10(row["sum_y2"] / row["sum_err2"])
        errors.setdefault((row["layer"], row["gemm"]), []).append(sampled_db - true_db)
    assert {len(found) for found in errors.values()} == {3}
    assert len(errors) == 5 * 3
    del errors["head", "wgrad"]
    found = np.abs(list(errors.values()))
    assert np.median(found) < 1.0
    assert found.max() < 2.5
