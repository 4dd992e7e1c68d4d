"""Rules on values and scales: kinds of faults are told with their numbers, healthy operands are not."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.diagnosis import Finding, diagnose

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

Array = npt.NDArray[np.float32]
NewRun = Callable[..., "SyntheticRun"]
RECIPE: dict[str, Any] = {"recipe": "current", "fmt": "E4M3", "alternate": False}


def normal(seed: int, shape: tuple[int, ...] = (64, 64)) -> Array:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def findings(written: SyntheticRun) -> tuple[Finding, ...]:
    with open_run(written.write(), threads=1) as run:
        return diagnose(run)


def shapes(rng: np.random.Generator) -> dict[str, Array]:
    """What operands of a healthy training look like."""
    x = rng.normal(0, 1, (48, 64))
    padded = np.maximum(x, 0)
    padded[32:] = 0
    return {
        "normal": x,
        "relu": np.maximum(x, 0),
        "padded": padded,
        "student": rng.standard_t(4, x.shape),
        "uniform": rng.uniform(-1, 1, x.shape),
        "laplace": rng.laplace(0, 1, x.shape),
        "sparse": x * (rng.random(x.shape) < 0.1),
        "channel": x * np.where(np.arange(64) == 7, 50, 1),
        "shifted": x + 20,
        "zero": x * 0,
    }


def test_healthy_operands_are_not_told(new_run: NewRun, synthetic_run: ModuleType) -> None:
    """Any shape and unit, under current scaling and under the framework's delayed one, which follows its history."""
    rng = np.random.default_rng(0)
    written = new_run()
    history: dict[tuple[str, str], list[float]] = {}
    units = {name: 10.0 ** rng.integers(-8, 6) for name in shapes(rng)}
    for step in range(8):
        for name, value in shapes(rng).items():
            for tensor in ("x", "w", "dy"):
                x = synthetic_run.as_bfloat16(value * units[name])
                seen = history.setdefault((name, tensor), [])
                largest = 57344.0 if tensor == "dy" else 448.0
                used = synthetic_run.ForcedScale(
                    largest / max(seen) if seen else 1.0, recipe="delayed:amax_history_len=16", n_rolls=len(seen),
                    history_len=16, history_zeros=16 - len(seen), status="ok" if seen else "warmup",
                )  # fmt: skip
                written.add(name, tensor, x, step=step, scales=(used,) if step else ())
                amax = float(np.abs(x).max())
                if amax:
                    seen.append(amax)
    assert [found for found in findings(written) if found.severity in ("error", "warning")] == []


def gemm(written: SyntheticRun, seq: int, *, sum_err2: float, name: str = "fprop", **cells: Any) -> None:
    """A result of 1024 sums of 64 products of unit size."""
    row = {"fmt": "E4M3", "other_fmt": "E4M3", "recipe": "current", "sum_y2": 65536.0, **cells}
    written.add_detail("gemms", seq, gemm=name, alternate=False, accumulation="exact", n=1024, n_nonfinite=0, depth=64,
                       sum_q2=65536.0, sum_yq=65536.0, sum_err2=sum_err2, sum_x2w2=65536.0, **row)  # fmt: skip


def test_gemm_results_are_judged_against_their_products(new_run: NewRun, synthetic_run: ModuleType) -> None:
    written = new_run()
    for step in range(3):
        seqs = {
            name: written.add(name, "x", normal(step), step=step)
            for name in ("healthy", "cancels", "off", "e5m2", "adds_up")
        }
        gemm(written, seqs["healthy"], sum_err2=65536 * 10**-2.86)
        gemm(written, seqs["cancels"], sum_err2=65536 * 10**-2.86, sum_y2=100.0)  # SQNR 1.8 dB of y itself
        gemm(written, seqs["off"], sum_err2=65536 * 10**-2.1, sum_y2=65536 * 10**-0.3)
        gemm(written, seqs["e5m2"], sum_err2=65536 * 10**-2.1, fmt="E5M2", name="dgrad")  # 18.0 dB at worst
        # Products that are alike add up, and so do their roundings: 15 dB against them, 27 dB of y itself.
        gemm(written, seqs["adds_up"], sum_err2=65536 * 10**-1.5, sum_y2=65536 * 10**1.2)
        for layer in ("w_clips", "w_is_fine"):
            seq, w = written.add(layer, "x", normal(step), step=step), normal(9)
            scale = 448 / np.abs(w).max() * (8 if layer == "w_clips" else 1)
            written.add(layer, "w", w, step=step, scales=(synthetic_run.ForcedScale(scale, "static:scale=2"),))
            gemm(written, seq, sum_err2=65536 * 0.3, recipe="static:scale=2")
    told = {found.worst.layer: found for found in findings(written)}
    assert {layer: found.rule for layer, found in told.items()} == {
        "off": "gemm_error", "w_is_fine": "gemm_error", "w_clips": "clipping",
    }  # fmt: skip
    off = told["off"]
    assert (off.severity, off.worst.gemm) == ("warning", "fprop")
    assert "21.0 dB against its products, 21.6 at worst" in off.message
    assert (off.evidence[0].value, off.evidence[0].healthy) == ("21.0", "28.5")


def test_gain_of_blocks(new_run: NewRun) -> None:
    factors = {"right": 1.0, "rounded": 1.04, "half": 0.5, "double": 2.0, "clipped": 0.93}
    written = new_run()
    for step in range(3):
        for layer, factor in factors.items():
            seq = written.add(layer, "x", normal(step), step=step)
            written.add_detail("blocks", seq, recipe="mxfp8", fmt="E4M3", alternate=False, orientation="row",
                               gemm="fprop", sample="all", n_total=4096, n=4096, n_nonzero=4096, n_underflow=0,
                               n_overflow=0, sum_x2=4096.0, sum_q2=4096.0 * factor**2, sum_xq=4096.0 * factor,
                               sum_err2=4096.0 * (1 - factor) ** 2 + 3, n_blocks=128, n_zero_blocks=0,
                               n_nonfinite_blocks=0, n_saturated_blocks=0, scale_min=1.0, scale_median=1.0,
                               scale_max=1.0)  # fmt: skip
    told = {found.worst.layer: found for found in findings(written)}
    assert told.keys() == {"half", "double", "clipped"}
    for name, found in told.items():
        assert (found.rule, found.severity, found.worst.gemm) == ("block_gain", "error", "fprop")
        assert f"come back multiplied by {factors[str(name)]:.3g}" in found.message


def test_underflow_is_told_where_the_median_channel_or_token_is_hurt(
    new_run: NewRun, synthetic_run: ModuleType
) -> None:
    x = normal(1, (64, 256))
    x[:, 5] *= 1e5
    x = synthetic_run.as_bfloat16(x)
    typical = {"channel": (6, 31), "token": (31, 6), "none": (31, 31)}
    written = new_run()
    for step in range(3):
        written.add("unmeasured", "x", x, step=step)
        for layer, by_axis in typical.items():
            seq = written.add(layer, "x", x, step=step)
            for axis, median_db in zip(("K", "token"), by_axis, strict=True):
                cells = {"axis": axis, "sample": "all", "n_channels": 64, "n_zero": 0, "worst_channel": 0, **RECIPE}
                written.add_detail("channels", seq, **cells, measure="sqnr_db", n_exact=0, bins=[median_db, 40],
                                   counts=[63, 1], worst_value=0.0)  # fmt: skip
                written.add_detail("channels", seq, **cells, measure="underflow", counts=[64], worst_value=1.0,
                                   bins=[0 if median_db > 24 else 57])  # fmt: skip
    told = {found.worst.layer: found for found in findings(written)}
    assert told.keys() == {"channel", "token", "unmeasured"}
    for found in told.values():
        assert (found.rule, found.severity) == ("underflow", "error")
        assert "outliers set the scale: the smallest 99 % of the values keep" in found.message
        numbers = {entry.title: float(entry.value) for entry in found.evidence}
        assert numbers["SQNR, dB"] == pytest.approx(31.6, abs=1.2)
        assert numbers["SQNR of the smallest 99 %, dB"] < 10
        assert numbers["underflow, %"] > 30


def test_another_format_is_noted_where_it_is_fine(new_run: NewRun, synthetic_run: ModuleType) -> None:
    """E4M3 in use at a wrong scale, E5M2 beside it: SQNR and underflow are read together."""
    written = new_run()
    for step in range(3):
        dy = synthetic_run.as_bfloat16(normal(step) * 1e-7)
        for layer, beside in (("better", 57344 / float(np.abs(dy).max())), ("as_bad", 1.0)):
            written.add(layer, "dy", dy, step=step, with_current=False, scales=(
                synthetic_run.ForcedScale(1.0, "static", fmt="E4M3"),
                synthetic_run.ForcedScale(beside, "static", fmt="E5M2", alternate=True),
            ))  # fmt: skip
    *errors, note = findings(written)
    assert {(found.rule, found.worst.layer) for found in errors} == {("underflow", "better"), ("underflow", "as_bad")}
    assert (note.rule, note.severity, [place.layer for place in note.places]) == ("format_choice", "note", ["better"])
    assert "E5M2, recorded beside it, 25." in note.message


def test_warm_up_is_noted_and_not_judged(new_run: NewRun, synthetic_run: ModuleType) -> None:
    written = new_run()
    for step in range(20):
        for source in ("simulated", "framework"):
            x = normal(step)
            scale = (8 if step < 10 else 1) * 448 / float(np.abs(x).max())
            used = synthetic_run.ForcedScale(scale, "delayed:amax_history_len=32", source=source, n_rolls=step + 1)
            written.add(source, "x", x, step=step, scales=(used,))
    judged, noted = findings(written)
    assert (judged.severity, judged.worst.layer) == ("error", "framework")
    assert (noted.rule, noted.severity, noted.confidence) == ("warmup", "note", "not_enough_evidence")
    assert [place.layer for place in noted.places] == ["simulated"]


def test_only_a_scale_that_is_too_large_clips(new_run: NewRun, synthetic_run: ModuleType) -> None:
    written = new_run()
    for step in range(3):
        x = normal(step)
        for layer, bits in (("clipped", 2.0), ("right", 0.0), ("unused", -10.0)):
            used = synthetic_run.ForcedScale(2.0**bits * 448 / float(np.abs(x).max()), "static:scale=2")
            written.add(layer, "x", x, step=step, scales=(used,))
    (found,) = findings(written)
    assert (found.rule, found.severity, [place.layer for place in found.places]) == ("clipping", "error", ["clipped"])
    assert "2.0 bits too large, so" in found.message
