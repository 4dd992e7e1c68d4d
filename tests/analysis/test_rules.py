"""The candidate rule: faults from the field are found, healthy tensors are not, one bad step is no candidate."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis import Run, open_run

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

Array = npt.NDArray[np.float32]
NewRun = Callable[..., "SyntheticRun"]


@pytest.fixture
def make(synthetic_run: ModuleType) -> Makers:
    return Makers(synthetic_run)


class Makers:
    """Short names for what the cases are made of."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._rng = np.random.default_rng(11)

    def normal(self, deviation: float, shape: tuple[int, ...] = (64, 64)) -> Array:
        """BF16 values from N(0, deviation)."""
        x: Array = self._module.as_bfloat16(self._rng.normal(0, deviation, shape))
        return x

    def with_channel(self, factor: float, channel: int = 200) -> Array:
        """N(0, 1) of shape (64, 256) with one channel multiplied."""
        x = self._rng.normal(0, 1, (64, 256))
        x[:, channel] *= factor
        scaled: Array = self._module.as_bfloat16(x)
        return scaled

    def with_peak(self) -> Array:
        """N(0, 1) with one element half as large again as all others: clipping it alone costs next to nothing."""
        x = self.normal(1.0)
        x[0, 0] = 1.5 * amax(x)
        peaked: Array = self._module.as_bfloat16(x)
        return peaked

    def scale(self, scale: float | None, **kwargs: Any) -> tuple[Any, ...]:
        """A stateful recipe with this scale in force."""
        return (self._module.ForcedScale(scale, **kwargs),)


def amax(x: Array) -> float:
    return float(np.abs(x).max())


def one(run: Run, query: str) -> dict[str, Any]:
    """The only row of a query, by column name."""
    relation = run.sql(query)
    rows = relation.fetchall()
    assert len(rows) == 1, rows
    return dict(zip(relation.columns, rows[0], strict=True))


def test_weights_loaded_over_a_stale_amax_are_clipped(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    for step in range(4):
        scale = 448 / amax(make.normal(0.02, (256, 256)))
        written.add("attn", "w", make.normal(0.5, (256, 256)), step=step, scales=make.scale(scale))
        written.add("mlp", "w", make.normal(1e-6, (256, 256)), step=step, scales=make.scale(scale))
    with open_run(written.write()) as run:
        clipped = one(run, "from candidates where layer = 'attn'")
        assert clipped["scale_gap_bits"] == pytest.approx(4.6, abs=0.2)
        assert clipped["overflow"] == pytest.approx(0.85, abs=0.02)
        assert clipped["sqnr_db"] == pytest.approx(1.3, abs=0.2)
        assert clipped["first_step"] == 0
        assert "gap" in clipped["criteria"]
        assert "bits too large (healthy 0)" in clipped["reason"]
        assert "the amax history disagrees with the weight" in clipped["reason"]
        lost = one(run, "from candidates where layer = 'mlp'")
        assert lost["scale_gap_bits"] == pytest.approx(-14.3, abs=0.3)
        assert lost["underflow"] == pytest.approx(0.16, abs=0.02)
        assert lost["sqnr_db"] == pytest.approx(19, abs=1.5)
        assert "bits too small (healthy 0), so 1" in lost["reason"]
        assert "the amax history disagrees with the weight" in lost["reason"]
        assert run.sql("select count(*) from candidates where recipe = 'current'").fetchall() == [(0,)]


def test_frozen_backward_scale_is_named(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    for step in range(10):
        dy = make.normal(1e-6 if step < 5 else 1e-5, (128, 128))
        written.add("attn", "dy", dy, step=step, scales=make.scale(1.0))
    with open_run(written.write()) as run:
        found = one(run, "from candidates")
        assert (found["layer"], found["tensor"], found["fmt"]) == ("attn", "dy", "E5M2")
        assert found["scale_is_frozen"]
        assert "the scale stayed at 1 while the tensor changed" in found["reason"]
        assert found["scale_gap_bits"] < -29
        halves = run.sql(
            "select step < 5, median(underflow), median(sqnr_db) from tensor_errors where recipe = 'delayed' "
            "group by all order by 1 desc"
        ).fetchall()
        assert halves[0][1] > 0.99
        assert halves[1][1] == pytest.approx(0.55, abs=0.02)
        assert halves[1][2] == pytest.approx(7.2, abs=0.3)


def test_amax_of_a_local_shard_is_found_by_the_gap(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    for step in range(3):
        x = make.with_channel(40)
        written.add("mlp", "x", x, step=step, scales=make.scale(448 / amax(x[:, :128])))
    with open_run(written.write()) as run:
        found = one(run, "from candidates")
        assert found["scale_gap_bits"] == pytest.approx(4.7, abs=0.5)
        assert found["overflow"] < 0.005
        assert found["sqnr_db"] < 3


def test_absolute_mse_fools_nobody(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    for step in range(3):
        written.add("healthy", "x", make.normal(1.0, (256, 256)), step=step)
        written.add("dead", "dy", make.normal(1e-5), step=step, fmt="E4M3", scales=make.scale(1.0, recipe="static"))
    with open_run(written.write()) as run:
        found = one(run, "from candidates")
        assert (found["layer"], found["recipe"], found["underflow"]) == ("dead", "static", 1.0)
        assert run.sql("from watch where layer = 'healthy'").fetchall() == []
        mse = dict(run.sql("select layer, max(mse) from tensor_errors group by layer").fetchall())
        assert mse["healthy"] > 1e-4 > mse["dead"], "the usual threshold is wrong about both"


def test_outlier_channel_leaves_the_rest_with_nothing(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    for step in range(3):
        x = make.with_channel(1e5)
        written.add("mlp", "x", x, step=step)
        written.add("attn", "x", x, step=step, pass_="eval")
    with open_run(written.write()) as run:
        found = one(run, "from candidates")
        assert found["layer"] == "mlp"
        assert found["criteria"] == ["underflow"]
        assert found["sqnr_db"] > 30 > 24.6 > found["sqnr_low_db"]
        assert found["reason"].startswith(
            f"the largest 1 % of values set the scale; the other 99 % keep {found['sqnr_low_db']:.1f} dB (healthy 31.5)"
        )
        assert found["db_lost"] == pytest.approx(31.5 - found["sqnr_low_db"])


@pytest.mark.parametrize("tensor", ["x", "w", "dy"])
def test_healthy_tensors_are_not_listed(new_run: NewRun, make: Makers, tensor: str) -> None:
    written = new_run()
    for step in range(25):
        x = make.normal(10.0 ** (step % 7 - 3))
        written.add("mlp", tensor, x, step=step, scales=make.scale(float((448 if tensor != "dy" else 57344) / amax(x))))
    with open_run(written.write()) as run:
        for view in ("hits", "candidates", "watch", "isolated_hits"):
            assert run.table(view).fetchall() == [], view


@pytest.mark.parametrize(
    ("n_steps", "n_bad", "listed"),
    [(10, 1, False), (10, 2, True), (30, 2, False), (30, 3, True), (80, 3, False), (80, 4, True)],
)
def test_hits_must_persist(new_run: NewRun, make: Makers, n_steps: int, n_bad: int, listed: bool) -> None:
    written = new_run()
    good, bad = make.normal(1.0, (32, 32)), make.scale(448 / amax(make.normal(1.0, (32, 32))) * 64)
    for step in range(n_steps):
        scales = bad if step < n_bad else make.scale(448 / amax(good))
        written.add("mlp", "x", good, step=step, scales=scales, with_current=False)
    with open_run(written.write()) as run:
        candidates = run.sql("select n_hit_steps, n_observed_steps, first_step, last_step from candidates").fetchall()
        isolated = run.sql("select step, n_operands, message from isolated_hits").fetchall()
    if listed:
        assert candidates == [(n_bad, n_steps, 0, n_bad - 1)]
        assert isolated == []
    else:
        assert candidates == []
        assert [row[:2] for row in isolated] == [(step, 1) for step in range(n_bad)]
        assert "mlp x (gap, gain, sqnr)" in isolated[0][2]


def test_gap_is_judged_at_unsampled_steps_with_their_own_denominator(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    x = make.normal(1.0)
    for step in range(40):
        gap = 4.0 if step % 10 == 1 else 1.0  # never at a sampled step
        written.add("mlp", "x", x, step=step, sampled=step % 10 == 0, scales=make.scale(gap * 448 / amax(x)))
    with open_run(written.write()) as run:
        found = one(run, "from candidates")
        assert (found["n_hit_steps"], found["n_observed_steps"]) == (0, 4)
        assert (found["n_gap_hit_steps"], found["n_gap_steps"]) == (4, 40)
        assert found["criteria"] == ["gap"]
        assert found["reason"].startswith("the scale is 2.0 bits too large (healthy 0)")
        hits = run.sql("select step, series, criteria from hits order by step").fetchall()
        assert hits == [(step, "gap", ["gap"]) for step in (1, 11, 21, 31)]


def test_what_proves_nothing_is_skipped(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    bad = {"scale": 1e6}
    big, small = make.normal(1.0), make.normal(1.0, (5, 51))
    for step in range(4):
        written.add("small", "x", small, step=step, scales=make.scale(**bad))
        written.add("eval", "x", big, step=step, pass_="eval", scales=make.scale(**bad))
        written.add("recompute", "x", big, step=step, pass_="recompute", scales=make.scale(**bad))
        written.add("warm", "x", big, step=step, scales=make.scale(**bad, source="simulated", n_rolls=15))
        written.add("warmed", "x", big, step=step, scales=make.scale(**bad, source="simulated", n_rolls=16))
        written.add("framework", "x", big, step=step, scales=make.scale(**bad, source="framework", n_rolls=0))
        alternate = make.scale(**bad, fmt="E4M3", alternate=True)
        written.add("alternate", "dy", big, step=step, scales=alternate)
    with open_run(written.write()) as run:
        found = run.sql("select layer from candidates order by layer").fetchall()
        assert found == [("framework",), ("warmed",)]
        assert run.sql("from watch").fetchall() == []
        alternates = run.sql("select count(*) from tensor_errors where alternate and sqnr_db < 10").fetchall()
        assert alternates == [(4,)], "alternate formats stay visible"


def test_formats_are_judged_by_their_limits_or_not_at_all(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    x = make.normal(1.0)
    for step in range(4):
        for fmt, largest in (("E4M3FNUZ", 240), ("E5M2FNUZ", 57344), ("E2M3", 7.5), ("E2M1", 6)):
            far_too_large = make.scale(16 * largest / amax(x), fmt=fmt)
            written.add(fmt, "x", x, step=step, scales=far_too_large, with_current=False)
    with open_run(written.write()) as run:
        floors = run.sql("select distinct fmt, sqnr_floor from evidence order by fmt").fetchall()
        assert floors == [("E4M3FNUZ", 24.6), ("E5M2FNUZ", 19.1)]
        assert run.sql("select layer from candidates order by layer").fetchall() == [("E4M3FNUZ",), ("E5M2FNUZ",)]
        assert run.sql("from watch").fetchall() == []


def test_watch_is_what_is_unusual_and_no_candidate(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    x = make.with_peak()
    for step in range(4):
        written.add("half_a_bit", "x", x, step=step, scales=make.scale(448 / amax(x) * 1.5), with_current=False)
        written.add("fault", "x", x, step=step, scales=make.scale(448 / amax(x) * 16), with_current=False)
    with open_run(written.write()) as run:
        found = one(run, "from watch")
        assert found["layer"] == "half_a_bit"
        assert found["scale_gap_bits"] == pytest.approx(np.log2(1.5), abs=1e-6)
        assert found["reason"].endswith("effect on the loss unknown")
        assert one(run, "from candidates")["layer"] == "fault"


def test_both_lists_rank_by_decibels_lost(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    x = make.normal(1.0)
    for step in range(6):
        for bits in (3, 6, 9):
            scale = 448 / amax(x) * 2.0**bits
            written.add(f"off_by_{bits}", "x", x, step=step, scales=make.scale(scale), with_current=False)
    with open_run(written.write()) as run:
        rows = run.sql("select place, layer, db_lost, worst_db_lost from candidates order by place").fetchall()
    assert [row[:2] for row in rows] == [(1, "off_by_9"), (2, "off_by_6"), (3, "off_by_3")]
    assert rows[0][2] > rows[1][2] > rows[2][2] > 0
    assert all(typical == worst for _, _, typical, worst in rows), "every step lost the same"


def test_thresholds_can_be_moved(new_run: NewRun, make: Makers) -> None:
    written = new_run()
    x = make.with_peak()
    for step in range(4):
        written.add("mlp", "x", x, step=step, scales=make.scale(448 / amax(x) * 1.5), with_current=False)
    path = written.write()
    with open_run(path) as run:
        assert run.sql("from candidates").fetchall() == []
    with open_run(path, thresholds={"gap_bits": 0.5}) as run:
        assert one(run, "from candidates")["criteria"] == ["gap"]
    with open_run(path, thresholds={"gap_bits": 0.5, "min_steps_short": 5}) as run:
        assert run.sql("from candidates").fetchall() == []


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_nothing_poisons_a_mean(new_run: NewRun, make: Makers, value: float) -> None:
    written = new_run()
    for step in range(4):
        x = make.normal(1.0)
        poisoned = np.full_like(x, value)
        written.add("mlp", "x", x, step=step, microbatch=0)
        written.add("mlp", "x", poisoned, step=step, microbatch=1, scales=make.scale(1.0))
        written.add("mlp", "x", np.zeros((0, 4), np.float32), step=step, microbatch=2, scales=make.scale(1.0))
    with open_run(written.write()) as run:
        summary = one(run, "select sqnr_db, gain, cosine, underflow from layer_summary where recipe = 'current'")
        assert summary["sqnr_db"] == pytest.approx(31.5, abs=0.5)
        assert summary["gain"] == pytest.approx(1, abs=5e-3)
        assert summary["cosine"] == pytest.approx(1, abs=1e-3)
        means = run.sql("select avg(sqnr_db), avg(mse), avg(scale_gap_bits), avg(rel_l2) from tensor_errors").fetchall()
        assert np.isfinite(means[0]).all()
        assert run.sql("from hits").fetchall() == []
