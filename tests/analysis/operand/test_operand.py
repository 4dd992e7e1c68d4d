"""One operand looked at closely: its numbers against numpy, what is chosen when nobody says, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.diagnosis import RuleBook, load_rules
from fp8debug.analysis.operand import Course, Operand, layer_named, look, tensors_named
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.formats import FORMATS, fake_quantize, overflows

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]
Floats = npt.NDArray[np.float32]

SCALE = np.float32(512.0)


def bell(seed: int, n: int = 2048) -> Floats:
    x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.fixture(scope="module")
def run(synthetic_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """x of `head` with two micro-batches a step: sampled at 0, 10 and 20, under a scale that clips; its codes at 10."""
    written = synthetic_run.SyntheticRun(
        tmp_path_factory.mktemp("operand") / "run", recipes=["current", "delayed"],
        layers=[synthetic_run.layer_info("head")],
    )  # fmt: skip
    for step in range(21):
        for part in range(2):
            rolls = 2 * step + part
            forced = synthetic_run.ForcedScale(float(SCALE), source="simulated", n_rolls=rolls)
            x = bell(rolls) * np.float32(1 + (step == 7))
            seq = written.add("head", "x", x, step=step, microbatch=part, sampled=step % 10 == 0, scales=(forced,))
            if step % 10 == 0:
                spread = {"n_channels": 8, "n_zero": 1, "bins": [0, 4], "counts": [6, 1], "worst_channel": 3}
                written.add_detail("channels", seq, axis="K", measure="amax", sample="all", worst_value=2.0 + step,
                                   **spread)  # fmt: skip
    key = {"step": 10, "microbatch": 0, "call": 0, "pass": "forward", "layer": "head", "tensor": "x", "seq": 10_000}
    written.add_row("tensors", **key, dtype="float8_e4m3fn", n=100, n_zero=5, n_nan=0, n_posinf=0, n_neginf=0,
                    amax=448.0, row_class="all", sampled=True, status="ok")  # fmt: skip
    written.add_row("scales", **key, recipe="current", fmt="E4M3", source="framework", scale=2.0, scale_inv=0.5)
    written.add_row("histograms", seq=10_000, counted="payload", value=448.0, count=20)
    written.add_row("histograms", seq=10_000, counted="payload", value=2.0**-9, count=75)
    written.add("other.fc1", "dy", np.zeros(300, np.float32), step=0)
    written.add("other.fc2", "dy", bell(0), step=0)
    written.write()
    with open_run(written.path, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def one_rule() -> RuleBook:
    """All of them would take as long as all the rest."""
    return RuleBook((load_rules()["clipping"],))


@pytest.fixture(scope="module")
def x(run: Run, one_rule: RuleBook) -> Operand:
    (found,) = look(run, "head", ["x"], rules=one_rule)
    return found


def course(operand: Operand, metric: str, recipe: str | None) -> Course:
    (found,) = (each for each in operand.courses if (each.metric, each.recipe) == (metric, recipe))
    return found


def test_what_it_is(x: Operand) -> None:
    facts = x.facts
    assert (facts.class_name, facts.in_features, facts.gemms) == ("Linear", 64, ("fprop", "wgrad"))
    assert (facts.shape, facts.dtype, facts.ranks) == ((2048,), "bfloat16", (0,))
    assert (facts.n_records, facts.n_steps, facts.n_sampled_steps, facts.counted_steps) == (42, 21, 3, (0, 10, 20))


def test_what_a_recorded_scale_leaves_is_what_numpy_finds(x: Operand) -> None:
    values = np.concatenate([bell(40), bell(41)])
    fit = next(each for each in x.fits if each.recipe == "delayed")
    q = (fake_quantize(values * SCALE, FORMATS["E4M3"]) / SCALE).astype(np.float64)
    wide, nonzero = values.astype(np.float64), values != 0
    assert (fit.source, fit.scale, fit.exact) == ("simulated", float(SCALE), False)
    assert (fit.largest, fit.smallest_normal, fit.smallest_subnormal) == (448 / 512, 2.0**-15, 2.0**-18)
    assert fit.above == np.mean(np.abs(wide) > 448 / 512)
    assert fit.below == np.mean(np.abs(wide[nonzero]) < 2.0**-15)
    assert fit.overflow == np.mean(overflows(values * SCALE, FORMATS["E4M3"]))
    assert fit.underflow == np.mean(q[nonzero] == 0)
    assert fit.sqnr_db == pytest.approx(10 * np.log10((wide**2).sum() / ((wide - q) ** 2).sum()))
    assert fit.gain == pytest.approx((wide * q).sum() / (wide**2).sum())


def test_formats_that_were_not_recorded_are_tried_at_the_current_scale(x: Operand) -> None:
    assert [(fit.recipe, fit.fmt, fit.source) for fit in x.fits] == [
        ("current", "E4M3", "simulated"), ("delayed", "E4M3", "simulated"), ("current", "E5M2", "whatif"),
    ]  # fmt: skip
    parts = [bell(40), bell(41)]
    scales = [np.float32(57344) / np.abs(part).max() for part in parts]
    casts = [fake_quantize(p * s, FORMATS["E5M2"]) * (1 / s) for p, s in zip(parts, scales, strict=True)]
    wide, q = (np.concatenate(each).astype(np.float64) for each in (parts, casts))
    assert x.fits[2].sqnr_db == pytest.approx(10 * np.log10((wide**2).sum() / ((wide - q) ** 2).sum()))
    assert x.fits[2].scale == min(scales)
    # Their products with the largest magnitude are a rounding above the largest value, which is not beyond it.
    assert [fit.above for fit in x.fits if fit.recipe == "current"] == [0.0, 0.0]


def test_the_worst_of_a_course_is_not_in_the_start_of_a_history(x: Operand) -> None:
    amax = course(x, "amax", None)
    assert amax.steps == tuple(range(21))
    assert amax.worst == (7, max(2 * np.abs(bell(r)).max() for r in (14, 15)))
    clipped = course(x, "overflow", "delayed")
    assert (clipped.steps, clipped.judged_from) == ((0, 10, 20), 8)
    assert clipped.worst[0] in (10, 20)
    gap = course(x, "scale_gap_bits", "delayed")
    assert len(gap.steps) == 21
    assert gap.worst[0] >= 8


@pytest.mark.parametrize(
    ("metric", "values", "worst"),
    [("gain", (1.0, 1.2, 0.7), 2), ("sqnr_db", (31.0, 20.0, 25.0), 1), ("scale_gap_bits", (-8.0, 0.2, -9.0), 1),
     ("scale_gap_bits", (-1.0, -3.0, 0.0), 1), ("underflow", (0.1, 0.3, 0.3), 1)],
)  # fmt: skip
def test_what_is_worst(metric: str, values: tuple[float, ...], worst: int) -> None:
    assert Course(metric, "current", "E4M3", (0, 1, 2), values).worst == (worst, values[worst])


def test_without_a_word_it_is_the_last_counted_step_under_the_worst_recipe(x: Operand) -> None:
    assert (x.asked_step, x.step, x.recipe) == (None, 20, "delayed")
    assert (x.standing.level, x.standing.fine_under) == ("candidate", ("current",))
    assert [told.rule for told in x.standing.told] == ["clipping"]


def test_what_is_asked_for_and_the_nearest_counted_step(run: Run, one_rule: RuleBook) -> None:
    (found,) = look(run, "head", ["x"], step=15, recipe="current", rules=one_rule)
    assert (found.asked_step, found.step, found.recipe) == (15, 10, "current")
    spread = found.distribution
    assert spread is not None
    assert (spread.step, spread.recipe, spread.n) == (10, "current", 4096)
    with pytest.raises(UsageError, match=r"mxfp8.*there is: current, delayed.*whatif --recipe mxfp8"):
        look(run, "head", ["x"], recipe="mxfp8", rules=one_rule)


def test_codes_and_channels(x: Operand) -> None:
    payload = x.payload
    assert payload is not None
    assert (payload.step, payload.recipe, payload.fmt, payload.n) == (10, "current", "E4M3", 100)
    assert (payload.saturated, payload.subnormal, payload.zero) == (0.2, 0.75, 0.05)
    assert (payload.scale, payload.scale_inv, payload.amax) == (2.0, 0.5, 224.0)
    (channels,) = x.channels
    assert (channels.axis, channels.worst_channel, channels.worst_value, channels.worst_step) == ("K", 3, 22.0, 20)


def test_why_an_operand_is_not_judged(run: Run, one_rule: RuleBook) -> None:
    (zeros,) = look(run, "other.fc1", ["dy"], rules=one_rule)
    assert zeros.standing.level == "not_judged"
    assert "non-zero" in (zeros.standing.why_not_judged or "")


def test_which_layer_is_meant(run: Run) -> None:
    assert layer_named(run, "head") == layer_named(run, "^h") == "head"
    for text, told in (
        ("fc", "matches 2 recorded layers: other.fc1, other.fc2; name one of them"),
        ("haed", "matches none of the 3 recorded layers; nearest names: head"),
        ("(", "is no regular expression"),
    ):
        with pytest.raises(UsageError, match=re.escape(told)):
            layer_named(run, text)


def test_which_tensor_is_meant(run: Run) -> None:
    assert tensors_named(run, "head", None) == tensors_named(run, "head", "activation") == ("x",)
    assert tensors_named(run, "other.fc1", "gradient") == ("dy",)
    with pytest.raises(UsageError, match=r"w of head was not recorded.*has its x;.*--tensors x,w"):
        tensors_named(run, "head", "w")
    with pytest.raises(UsageError, match=r"got 'wheight'.*nearest: weight"):
        tensors_named(run, "head", "wheight")


def test_nothing_recorded(new_run: NewRun) -> None:
    with open_run(new_run().path) as opened, pytest.raises(Fp8DebugError, match="fp8debug attach"):
        layer_named(opened, "head")
