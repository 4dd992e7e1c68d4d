"""What-if against what a run recorded under the recipes, against numpy on the histograms, and against the elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fp8debug
from fp8debug.analysis import Run, open_run
from fp8debug.analysis.whatif import OperandErrors, WhatIf, default_recipes, record_sums, whatif
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.formats import ELEMENT_FORMATS
from fp8debug.metrics import error_sums

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]

SUMS = (
    "n", "n_nonzero", "n_underflow", "n_overflow", "sum_x2", "sum_q2", "sum_xq", "sum_err2", "n_low", "low_sum_x2",
    "low_sum_err2",
)  # fmt: skip
RECIPES = (
    "current",
    "current:power_of_two=true",
    "current:amax_epsilon=0.5,fp8_format=E5M2",
    "delayed",
    "delayed:amax_history_len=1,amax_compute_algo=most_recent",
    "delayed:amax_history_len=3",
    "delayed:amax_history_len=3,margin=2",
    "delayed:amax_history_len=4,amax_compute_algo=most_recent,margin=-1",
    "delayed:amax_history_len=2,fp8_format=E4M3",
    "delayed:amax_history_len=2,margin=1,fp8_format=E5M2",
    "static:scale=96.0",
    "bf16",
    "coat",
    "coat:k=2.5,fp8_format=E5M2",
)


X = np.linspace(-7, 7, 512, dtype=np.float32)


# Against a run that was recorded under the recipes ------------------------------------------------------------------


def train(model: nn.Module) -> None:
    """Accumulation over two micro-batches, a recomputed layer, an evaluation pass, a step with zero gradients."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(12):
        for _ in range(2):
            x = torch.randn(8, 16, dtype=torch.bfloat16) * (1 + step % 4)
            loss = checkpoint(model, x, use_reentrant=False).float().square().mean()
            (loss * (0.0 if step == 4 else 1.0 + 30 * (step == 7))).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                model(torch.full((8, 16), 100.0, dtype=torch.bfloat16))
            model.train()


def record(path: Path, **options: Any) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(torch.bfloat16)
    with fp8debug.attach(model, run_dir=path, engine="torch", every=3, detail=(), quiet=True, **options):
        train(model)
    return path


@pytest.fixture(scope="module", params=["microbatch", "step"])
def recordings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same training twice: under the default recipes, and under all of `RECIPES`."""
    folder = tmp_path_factory.mktemp("recordings")
    plain = record(folder / "plain", rolls=request.param)
    return plain, record(folder / "full", rolls=request.param, recipes=RECIPES)


def rows_of(run: Run, relation: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """(scale, sums) by (seq, recipe, fmt)."""
    columns = f"seq, recipe, fmt, scale, {', '.join(SUMS)}"
    return {row[:3]: row[3:] for row in run.sql(f"select {columns} from {relation}").fetchall()}


def test_errors_are_those_of_a_run_recorded_under_the_recipes(recordings: tuple[Path, Path]) -> None:
    plain, full = recordings
    with open_run(full) as run:
        recorded = rows_of(run, "errors where not alternate and pass in ('forward', 'backward')")
    with open_run(plain) as run:
        record_sums(run, RECIPES)
        worked_out = rows_of(run, "whatif_sums join whatif_records using (record)")
    assert len(recorded) == len(RECIPES) * 2 * 4 * (2 + 1 + 2)  # layers, steps, (x, w, dy: w once a step)
    assert worked_out.keys() == recorded.keys()
    for key, expected in recorded.items():
        assert worked_out[key][0] == expected[0], key
        assert worked_out[key][1:] == pytest.approx(expected[1:], rel=1e-9, abs=0), key


def test_steps_choose_what_is_shown_and_leave_histories_whole(recordings: tuple[Path, Path]) -> None:
    with open_run(recordings[0]) as run:
        record_sums(run, ["delayed:amax_history_len=3"])
        whole = rows_of(run, "whatif_sums join whatif_records using (record) where step in (6, 9)")
        record_sums(run, ["delayed:amax_history_len=3"], steps=[(5, 6), (9, None)])
        assert rows_of(run, "whatif_sums join whatif_records using (record)") == whole


# Against the core -----------------------------------------------------------------------------------------------------


def histograms(run: Run) -> Iterator[tuple[int, str, Any, Any]]:
    """(seq, tensor, values, counts)."""
    columns = run.sql("select seq, tensor, value, count from histograms order by seq, value").fetchnumpy()
    for seq in np.unique(columns["seq"]):
        chosen = columns["seq"] == seq
        yield int(seq), columns["tensor"][chosen][0], columns["value"][chosen], columns["count"][chosen]


@pytest.mark.parametrize("fmt", ELEMENT_FORMATS)
def test_sql_sums_are_those_of_numpy(new_run: NewRun, synthetic_run: ModuleType, fmt: str) -> None:
    rng = np.random.default_rng(7)
    written = new_run()
    for step, shape in enumerate([0.03, 1.0, 4.0]):  # narrow, bell, six decades
        x = np.exp(shape * rng.standard_normal(400)) * rng.choice([-1, 0, 1], 400)
        written.add("mlp", "x", synthetic_run.as_bfloat16(x), step=step)
    written.add("mlp", "x", np.array([np.inf, 3.0, -0.0], np.float32), step=3)
    written.add("mlp", "x", np.zeros(5, np.float32), step=3)
    written.add("mlp", "x", np.array([1e-30], np.float32), step=3)
    recipes = [f"current:fp8_format={fmt}", f"static:scale=3.7,fp8_format={fmt}"]
    with open_run(written.write()) as run:
        record_sums(run, recipes)
        got = rows_of(run, "whatif_sums join whatif_records using (record)")
        assert len(got) == 2 * 6
        for seq, _, values, counts in histograms(run):
            for recipe in [key[1] for key in got if key[0] == seq]:
                scale, *sums = got[seq, recipe, fmt]
                expected = asdict(error_sums(values, counts, np.float32(scale), ELEMENT_FORMATS[fmt]))
                assert sums == pytest.approx([expected[name] for name in SUMS], rel=1e-9, abs=0)


def coat(x: Any, k: float) -> Any:
    """sign(x)|x|^k cast to E4M3 with the scale of its amax, and back, as the paper has it; the cast by ml_dtypes."""
    amax = float(np.abs(x).max())
    expanded = np.sign(x) * (np.abs(x) / amax) ** k * 448
    code = np.clip(expanded, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return np.sign(code) * (np.abs(code) / 448) ** (1 / k) * amax


def test_range_expansion_and_bf16_follow_from_the_histogram(new_run: NewRun, synthetic_run: ModuleType) -> None:
    x = synthetic_run.as_bfloat16(np.exp(0.3 * np.random.default_rng(1).standard_normal(2000)))
    written = new_run()
    written.add("mlp", "x", x, step=0)
    wide = x.astype(np.float64)
    q = coat(wide, 3.0)
    expected = 10 * math.log10((wide**2).sum() / ((wide - q) ** 2).sum())
    with open_run(written.write()) as run:
        answer = whatif(run, ["coat:k=3", "coat", "bf16", "current"])
    sqnr = {entry.recipe: entry.sqnr_db for entry in answer.operands}
    assert sqnr["coat:k=3.0"] == pytest.approx(expected, abs=1e-5)
    assert sqnr["bf16"] is None
    assert [entry.exact for entry in answer.operands] == [False, False, True, False]
    assert (sqnr["coat"] or 0) > (sqnr["current"] or 0) + 3


# Merging --------------------------------------------------------------------------------------------------------------


def two_layers(new_run: NewRun, **about: Any) -> SyntheticRun:
    """`small` in one step and `large`, a thousand times as large, in two; x and dy."""
    written = new_run(recipes=["current", "delayed"], **about)
    bell = np.random.default_rng(0).standard_normal(512)
    for step in range(2):
        written.add("large", "x", (1000 * bell + step).astype(np.float32), step=step)
    written.add("small", "x", np.array([1.0, 2.0, 448.0], np.float32), step=1)
    written.add("small", "dy", bell.astype(np.float32), step=1)
    return written


def entry(answer: WhatIf, **cells: Any) -> OperandErrors:
    """The only operand with these cells."""
    (found,) = [e for e in answer.operands if all(getattr(e, name) == value for name, value in cells.items())]
    return found


def test_sums_are_merged_and_ratios_come_last(new_run: NewRun) -> None:
    with open_run(two_layers(new_run).write()) as run:
        per_layer = whatif(run, ["current"], tensors=["x"])
        summed = whatif(run, ["current"], tensors=["x"], per_layer=False)
        stored = run.sql("select sum(sum_x2), sum(sum_err2), sum(n) from errors where tensor = 'x'").fetchall()[0]
    (whole,) = summed.operands
    assert (whole.sum_x2, whole.sum_err2, whole.n) == pytest.approx(stored)
    assert whole.sqnr_db == pytest.approx(10 * math.log10(stored[0] / stored[1]))
    assert (whole.layer, whole.n_records, whole.n_steps, whole.fmt) == (None, 3, 2, "E4M3")
    assert entry(per_layer, layer="small").exact
    assert entry(per_layer, layer="small").sqnr_db is None
    assert entry(per_layer, layer="large").sqnr_db == pytest.approx(whole.sqnr_db, abs=1e-3)
    assert per_layer.layers == ("large", "small"), "worst first"


def test_only_what_is_asked_for(new_run: NewRun) -> None:
    with open_run(two_layers(new_run).write()) as run:
        answer = whatif(run, ["current:fp8_format=E4M3"], layer="mal", tensors=["dy"], steps=[(1, 1)])
        assert [(e.layer, e.tensor, e.fmt) for e in answer.operands] == [("small", "dy", "E4M3")]
        assert (answer.n_histograms, answer.steps, answer.layers) == (1, (1,), ("small",))
        assert [e.recipe for e in whatif(run, ["current", "current:power_of_two=false"], layer="large").operands] == [
            "current"
        ], "one text is one recipe"
        assert [recipe.text for recipe in default_recipes(run)] == ["current", "delayed"]


def test_the_start_of_a_history_is_left_out_and_said(new_run: NewRun) -> None:
    written = new_run()
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    for step in range(20):
        written.add("mlp", "x", x * np.float32(1 + step / 100), step=step)
    with open_run(written.write()) as run:
        answer = whatif(run, ["delayed", "current"])
        assert {e.recipe: e.n_records for e in answer.operands} == {"delayed": 4, "current": 4}
        assert answer.steps == (16, 17, 18, 19)
        assert any("16 of 20 records are left out for every recipe" in note.message for note in answer.notes)
        assert [e.n_records for e in whatif(run, ["current"]).operands] == [20]
    with open_run(written.path, thresholds={"warmup_rolls": 1}) as run:
        assert {e.n_records for e in whatif(run, ["delayed"]).operands} == {19}


def test_evaluation_and_recomputed_passes_count_nowhere(new_run: NewRun) -> None:
    written = new_run()
    for pass_ in ("forward", "recompute", "eval"):
        written.add("mlp", "x", X * (1 if pass_ == "forward" else 100), step=0, pass_=pass_)
    with open_run(written.write()) as run:
        assert [e.n_records for e in whatif(run, ["current"]).operands] == [1]


def test_a_missing_amax_ends_the_history_and_is_said(new_run: NewRun) -> None:
    written = new_run()
    for step in range(4):
        written.add("mlp", "x", np.ones(8, np.float32), step=step)
    written.add_row("tensors", step=4, microbatch=0, call=0, **{"pass": "forward"}, layer="mlp", tensor="x", seq=50,
                    sampled=False, status="ok", n=8)  # fmt: skip
    for step in range(5, 7):
        written._next_seq = 51 + step
        written.add("mlp", "x", np.ones(8, np.float32), step=step)
    with open_run(written.write(), thresholds={"warmup_rolls": 0}) as run:
        answer = whatif(run, ["delayed"])
        assert [e.n_records for e in answer.operands] == [4]
        assert [n.message for n in answer.notes if n.kind == "history"] == [
            "delayed: 2 records are left out, since an earlier pass has no amax"
        ]


def test_histories_of_several_ranks_see_the_largest_amax(new_run: NewRun) -> None:
    written = new_run(world_size=2)
    for step in range(3):
        for rank in range(2):
            written.add("mlp", "x", np.array([1.0, 2.0, 7.0 * (1 + rank)], np.float32), step=step, rank=rank)
    with open_run(written.write()) as run:
        record_sums(run, ["delayed"])
        scales = run.sql("select distinct step, scale from whatif_sums join whatif_records using (record)").fetchall()
        assert sorted(scales) == [(0, 1.0), (1, 32.0), (2, 32.0)]
        assert "ranks" in {note.kind for note in whatif(run, ["delayed", "current"]).notes}


def test_a_resume_begins_a_new_history(new_run: NewRun) -> None:
    written = new_run()
    for segment, steps in ((0, range(4)), (1, range(2, 5))):
        for step in steps:
            written.add("mlp", "x", np.array([1.0, 7.0], np.float32), step=step, segment=segment)
    with open_run(written.write()) as run:
        record_sums(run, ["delayed"])
        rows = run.sql("select step, segment, scale from whatif_sums join whatif_records using (record)").fetchall()
    assert sorted(rows) == [(0, 0, 1.0), (1, 0, 64.0), (2, 1, 1.0), (3, 1, 64.0), (4, 1, 64.0)]


# What was recorded ----------------------------------------------------------------------------------------------------


def with_details(new_run: NewRun, **about: Any) -> SyntheticRun:
    """mxfp8 blocks of x in both orientations, and fprop results under it and current scaling."""
    written = new_run(recipes=["current", "mxfp8"], **about)
    for step in range(2):
        seq = written.add("mlp", "x", X, step=step)
        for orientation, gemm, err2 in (("row", "fprop", 1.0), ("column", "wgrad", 3.0)):
            for alternate in (False, True):
                written.add_detail(
                    "blocks", seq, recipe="mxfp8", fmt="E4M3", alternate=alternate, orientation=orientation, gemm=gemm,
                    sample="all", n_total=512, n=512, n_nonzero=500, n_underflow=50, n_overflow=0, sum_x2=1000.0,
                    sum_q2=1000.0, sum_xq=1000.0, sum_err2=err2 * (50 if alternate else 1), n_blocks=16,
                    n_zero_blocks=0, n_nonfinite_blocks=0, n_saturated_blocks=4,
                )  # fmt: skip
        for recipe, err2 in (("mxfp8", 4.0), ("current", 9.0)):
            written.add_detail(
                "gemms", seq, gemm="fprop", recipe=recipe, fmt="E4M3", other_fmt="E4M3", alternate=False,
                accumulation="exact", sample="rows 0:8 of 64 columns 0:8 of 32", n=64, n_nonfinite=0, sum_y2=10000.0,
                sum_q2=10000.0, sum_yq=9000.0, sum_err2=err2, sum_x2w2=40000.0,
            )  # fmt: skip
    return written


def test_block_recipes_and_results_are_what_was_recorded(new_run: NewRun) -> None:
    with open_run(with_details(new_run).write()) as run:
        answer = whatif(run, ["current", "mxfp8"], per_layer=False)
    both = entry(answer, recipe="mxfp8", gemm=None)
    assert (both.source, both.n_records, both.sum_err2, both.saturated) == ("blocks", 2, 8.0, 0.25)
    assert both.sqnr_db == pytest.approx(10 * math.log10(4000 / 8))
    assert both.underflow == pytest.approx(0.1)
    assert entry(answer, recipe="mxfp8", gemm="wgrad").sum_err2 == 6.0
    results = {result.recipe: result for result in answer.gemms}
    assert results["current"].rel_l2 == pytest.approx(0.03)
    assert results["mxfp8"].rel_l2 == pytest.approx(0.02)
    assert results["mxfp8"].n_records == 2
    assert results["mxfp8"].gain == pytest.approx(0.9)
    assert [note.kind for note in answer.notes] == ["sample"]


def test_blocks_and_results_at_the_start_of_a_history_are_left_out_too(new_run: NewRun) -> None:
    written = new_run(recipes=["delayed", "mxfp8"])
    sums = {"sum_q2": 1.0, "sum_err2": 1.0}
    for step in range(20):
        seq = written.add("mlp", "x", X, step=step)
        for recipe in ("delayed", "mxfp8"):
            written.add_detail("gemms", seq, gemm="fprop", recipe=recipe, fmt="E4M3", other_fmt="E4M3", alternate=False,
                               accumulation="exact", n=4, sum_y2=1.0, **sums)  # fmt: skip
        written.add_detail("blocks", seq, recipe="mxfp8", fmt="E4M3", alternate=False, gemm="fprop", n=4, n_total=4,
                           sum_x2=1.0, **sums)  # fmt: skip
    with open_run(written.write()) as run:
        answer = whatif(run, ["delayed", "mxfp8"])
        assert [result.n_records for result in answer.gemms] == [4, 4]
        assert {e.n_records for e in answer.operands} == {4}
        assert {result.n_records for result in whatif(run, ["mxfp8"]).gemms} == {20}
    with open_run(written.path, thresholds={"warmup_rolls": 30}) as run:
        answer = whatif(run, ["delayed", "mxfp8"])
        assert [(result.recipe, result.n_records) for result in answer.gemms] == [("mxfp8", 20)]
        assert any(note.message.endswith("nothing can be said of delayed") for note in answer.notes)


def test_what_was_not_recorded_is_said_with_the_option_that_records_it(new_run: NewRun) -> None:
    with open_run(with_details(new_run).write()) as run:
        told = {note.kind: note for note in whatif(run, ["mxfp4", "nvfp4", "current:power_of_two=true"]).notes}
    assert told["not_recorded"].message.startswith("mxfp4 and nvfp4 were not recorded (this run has mxfp8)")
    assert told["not_recorded"].command == "fp8debug attach --recipe mxfp4 --recipe nvfp4 ..."
    assert told["gemms_not_recorded"].message.endswith("were not recorded (this run has current and mxfp8)")
    assert told["gemms_not_recorded"].command == "fp8debug attach --recipe current:power_of_two=true ..."


def test_what_was_recorded_elsewhere_is_not_called_unrecorded(new_run: NewRun) -> None:
    written = with_details(new_run)
    written.add("other", "x", X, step=1)
    with open_run(written.write()) as run:
        assert {note.command for note in whatif(run, ["mxfp8", "current"], layer="other").notes} == set()
        with pytest.raises(Fp8DebugError, match="of mxfp8 in this run: what was recorded of it is of other layers"):
            whatif(run, ["mxfp8"], layer="other")


def test_detail_that_was_switched_off_is_named(new_run: NewRun) -> None:
    written = two_layers(new_run, options={"detail": ["channels"]})
    with open_run(written.write()) as run:
        commands = {note.kind: note.command for note in whatif(run, ["current", "mxfp8"]).notes if note.command}
    assert commands == {
        "not_recorded": "fp8debug attach --detail channels,blocks --recipe mxfp8 ...",
        "gemms_not_recorded": "fp8debug attach --detail channels,gemms --recipe current ...",
    }


def test_approximate_and_payload_histograms_are_said(new_run: NewRun) -> None:
    written = new_run()
    written.add("mlp", "x", X, step=0, approx="bf16")
    seq = written.add("mlp", "w", X, step=0, sampled=False)
    written._rows["tensors", 0][-1]["sampled"] = True
    written.add_row("histograms", seq=seq, counted="payload", value=1.0, count=512)
    with open_run(written.write()) as run:
        answer = whatif(run, ["current"])
    assert {e.tensor: e.approx for e in answer.operands} == {"x": "bf16"}
    messages = {note.kind: note.message for note in answer.notes}
    assert "x: approximate" in messages["approx"]
    assert "FP8 payloads are left out (1)" in messages["payload"]
    assert "1 of 2 sampled records" in messages["no_histogram"]


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipes", "options", "kind", "message"),
    [
        (["curent"], {}, UsageError, "unknown recipe 'curent'; did you mean current"),
        (["delayed:margin=99"], {}, UsageError, "margin is 99, expected an integer from -32 to 32"),
        (["current"], {"layer": "nope"}, UsageError, "layer pattern 'nope' matches none of the 2 recorded layers"),
        (["current"], {"layer": "("}, UsageError, "is not a regular expression"),
        (["current"], {"tensors": ["dw"]}, UsageError, "`fp8debug attach --tensors x,dy,dw ...`"),
        (["current"], {"steps": [(50, None)]}, UsageError, "this run has steps 0 to 1"),
        (["mxfp4"], {}, Fp8DebugError, "nothing is known of mxfp4 in this run: mxfp4 was not recorded"),
        (["delayed"], {}, Fp8DebugError, "all records belong to the first 16 passes"),
    ],
)
def test_refusals(
    new_run: NewRun, recipes: Sequence[str], options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with open_run(two_layers(new_run).write()) as run, pytest.raises(kind) as caught:
        whatif(run, recipes, **options)
    assert message in str(caught.value)


def test_nothing_sampled(new_run: NewRun) -> None:
    written = new_run()
    written.add("mlp", "x", np.ones(4, np.float32), step=0, sampled=False)
    with open_run(written.write()) as run, pytest.raises(Fp8DebugError, match="no tensor was sampled"):
        whatif(run, ["current"])
