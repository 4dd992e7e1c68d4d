"""The page of a run: what its SQL gives is what it shows, whatever the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.page import build_page, merge_columns, page_run, page_runs
from fp8debug.analysis.page.limits import LIMIT
from fp8debug.analysis.page.records import PageRun, ReportPage
from fp8debug.analysis.query import run_query
from fp8debug.analysis.report import build_report

if TYPE_CHECKING:
    from tests.analysis.page.conftest import Opened
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]

HOSTILE = ("a'; drop table tensors; --", 'b"]</script>$layer', "c\\ü\n?")


def page_of(path: Path) -> ReportPage:
    with open_run(path, threads=1) as run:
        return build_page(run, build_report(run))


def check_planes(run: Run, shown: PageRun, every: int) -> None:
    """A plane is what its query gives: nothing more, nothing less."""
    places = {layer: place for place, layer in enumerate(shown.layers)}
    columns = {step // shown.span: place for place, step in enumerate(shown.first_steps.tolist())}
    for plane in shown.planes[::every]:
        wanted = np.full(plane.values.shape, np.nan, dtype=np.float32)
        for layer, step, value in run_query(run, plane.sql).fetchall():
            if layer in places and value is not None:
                wanted[places[layer], columns[step // shown.span]] = value
        np.testing.assert_array_equal(plane.values, wanted, err_msg=plane.sql)
        assert not np.isnan(plane.values).all()


def check(path: Path, page: ReportPage, every: int = 1) -> None:
    """All queries run, and each `every`th plane and distribution is what its own gives."""
    with open_run(path, threads=1) as run:
        check_planes(run, page.run, every)
        for query in page.queries:
            run_query(run, query.sql).fetchall()
        if page.run.training is not None:
            rows = run_query(run, page.run.training.sql).fetchall()
            assert [row[0] for row in rows] == page.run.training.steps.tolist()
        for shown in page.run.distributions[::every]:
            rows = run_query(run, shown.sql).fetchall()
            counts = {row[0]: row[1:3] for row in rows}
            for octave, before in zip(shown.octaves, shown.before, strict=True):
                assert (counts[octave][0] if octave in counts else 0) == before
    assert {plane.metric for plane in page.run.planes} | {LIMIT} == {metric.name for metric in page.metrics} | {LIMIT}
    assert page.run.first_steps.tolist() == sorted(page.run.first_steps.tolist())


def test_every_query_of_a_wide_run_gives_what_is_shown(opened: Opened) -> None:
    page, planted = opened.page, opened.planted
    assert page.run.layers == planted.layers
    assert page.run.first_steps.tolist() == page.run.last_steps.tolist() == list(range(planted.n_steps))
    assert [(m.name, sum(p.metric == m.name for p in page.run.planes)) for m in page.metrics] == [
        ("underflow", 6), ("overflow", 6), ("sqnr_db", 6), ("sqnr_low_db", 6), ("scale_gap_bits", 6),
        (LIMIT, 0), ("amax", 3), ("nonfinite", 3),
    ]  # fmt: skip
    gap = next(p for p in page.run.planes if (p.metric, p.operand, p.recipe) == ("scale_gap_bits", "x", "delayed"))
    bad = page.run.layers.index(planted.bad_layer)
    assert gap.values[bad, planted.bad_step :] == pytest.approx(2.5, abs=1e-5)
    assert {(shown.layer, shown.tensor) for shown in page.run.distributions} == {
        (planted.bad_layer, tensor) for tensor in ("x", "w", "dy")
    }
    assert page.run.distributions[0].tensor == "x"
    assert page.run.distributions[0].recipe == "delayed"
    assert any(query.title.startswith("Finding clipping") for query in page.queries)
    assert [(one.name, one.largest, one.smallest_normal, one.smallest_subnormal) for one in page.formats] == [
        ("E4M3", 448.0, 2.0**-6, 2.0**-9), ("E5M2", 57344.0, 2.0**-14, 2.0**-16),
    ]  # fmt: skip
    check(planted.path, page, every=5)  # of each metric one


def test_counted_values_say_what_the_error_sums_say(opened: Opened) -> None:
    shown = opened.page.run
    planes = {(p.operand, p.recipe): p.values for p in shown.planes if p.metric == "overflow"}
    row = shown.layers.index(opened.planted.bad_layer)
    assert len(shown.distributions) == 3
    for found in shown.distributions:
        share = planes[found.tensor, found.recipe][row, shown.first_steps.tolist().index(found.step)]
        assert found.n_overflow / found.n == pytest.approx(share, rel=1e-6)
        assert (found.n_overflow > 200) == (found.tensor == "x")  # the planted one clips


def test_thinned_columns_and_layers_are_the_worst_and_said(opened: Opened) -> None:
    planted = opened.planted
    page = build_page(opened.run, opened.report, max_columns=20, max_layers=3)
    assert page.run.span == 8
    assert page.run.first_steps.tolist() == list(range(0, 90, 8))
    assert page.run.last_steps.tolist() == [*range(7, 88, 8), 89]
    assert planted.bad_layer in page.run.layers
    assert list(page.run.layers) == [layer for layer in planted.layers if layer in page.run.layers]
    assert "3 of 8 layers are shown: those with findings and candidates, then the worst." in page.run.notes
    assert (
        "Steps 0 to 89 are shown in 12 columns of neighbouring steps. A cell shows the worst of them." in page.run.notes
    )
    check(planted.path, page, every=7)
    whole = {(p.metric, p.operand, p.recipe): p.values for p in opened.page.run.planes}
    rows = [planted.layers.index(layer) for layer in page.run.layers]
    for plane in [plane for plane in page.run.planes if plane.metric != LIMIT]:
        pieces = np.split(whole[plane.metric, plane.operand, plane.recipe][rows], range(8, 90, 8), axis=1)
        for column, piece in zip(plane.values.T, pieces, strict=True):
            largest, smallest = np.fmax.reduce(piece, axis=1), np.fmin.reduce(piece, axis=1)
            if plane.metric.startswith("sqnr"):
                largest = smallest
            elif plane.metric == "scale_gap_bits":
                largest = np.where(largest > 0, largest, smallest)
            np.testing.assert_array_equal(column, largest)


def test_halved_columns_are_those_of_a_narrower_page(opened: Opened) -> None:
    halved = merge_columns(merge_columns(opened.page.run, 2), 2)
    narrow = page_run(opened.run, opened.report, max_columns=23)
    assert halved.span == narrow.span == 4
    assert halved.first_steps.tolist() == narrow.first_steps.tolist()
    assert halved.last_steps.tolist() == narrow.last_steps.tolist()
    for plane, other in zip(halved.planes, narrow.planes, strict=True):
        assert plane.sql == other.sql
        np.testing.assert_allclose(plane.values, other.values, rtol=1e-6 if plane.metric == LIMIT else 0)
    assert set(halved.notes) == set(narrow.notes)
    assert sum(note.endswith("A cell shows the worst of them.") for note in halved.notes) == 1


def test_sparse_steps_share_columns_by_their_distance(new_run: NewRun) -> None:
    run = new_run()
    for step in range(1, 301, 10):
        run.add("fc", "x", np.full((2, 2), step, dtype=np.float32), step=step, sampled=False)
    with open_run(run.write(), threads=1) as opened_run:
        shown = page_run(opened_run, max_columns=15)
    assert (shown.span, shown.first_steps.size) == (20, 15)
    assert shown.planes[0].values[0].tolist() == [float(step) for step in range(11, 301, 20)]
    assert merge_columns(shown, 2).first_steps.size == 8


def test_runs_side_by_side_have_the_same_axes(opened: Opened, new_run: NewRun, synthetic_run: ModuleType) -> None:
    layers = [synthetic_run.layer_info(name) for name in ("blocks.0.attn.qkv", "new", "blocks.0.attn.proj")]
    other = new_run(layers=layers)
    for step in (3, 88, 95):
        other.add("new", "x", np.ones((2, 2), dtype=np.float32), step=step, sampled=False)
    with open_run(other.write(), threads=1) as second:
        first_page, second_page = page_runs([opened.run, second], ["first", "second"])
        narrow, _ = page_runs([opened.run, second], ["first", "second"], max_columns=20, max_layers=4)
    assert first_page.layers == second_page.layers
    assert set(first_page.layers) == {*opened.planted.layers, "new"}
    assert first_page.first_steps.tolist() == second_page.first_steps.tolist() == [*range(90), 95]
    amax = next(plane for plane in second_page.planes if plane.metric == "amax")
    row = second_page.layers.index("new")
    assert np.flatnonzero(~np.isnan(amax.values[row])).tolist() == [3, 88, 90]
    assert np.isnan(np.delete(amax.values, row, axis=0)).all()
    own = {(p.metric, p.operand, p.recipe): p.values for p in opened.page.run.planes}
    kept = [first_page.layers.index(layer) for layer in opened.planted.layers]
    for plane in first_page.planes:
        np.testing.assert_array_equal(plane.values[kept, :90], own[plane.metric, plane.operand, plane.recipe])
    assert (narrow.span, narrow.first_steps.size, len(narrow.layers)) == (8, 12, 4)
    assert "4 of 9 layers are shown: the worst of each run." in narrow.notes


def test_hostile_names_are_quoted(new_run: NewRun, synthetic_run: ModuleType) -> None:
    run = new_run(layers=[synthetic_run.layer_info(name) for name in reversed(HOSTILE)], recipes=["de'la;yed"])
    x = synthetic_run.as_bfloat16(np.random.default_rng(1).normal(0, 1, (16, 32)))
    for step in range(3):
        for layer in HOSTILE:
            scales = (synthetic_run.ForcedScale(700.0, recipe="de'la;yed"),)
            run.add(layer, "x", x * (step + 1), step=step, scales=scales)
    path = run.write()
    page = page_of(path)
    assert page.run.layers == HOSTILE[::-1]
    assert len(page.run.distributions) == 6  # the last step is the worst
    check(path, page, every=4)


def test_one_step_without_recipes_and_without_a_training(new_run: NewRun) -> None:
    run = new_run()
    run.add("fc", "x", np.ones((4, 4), dtype=np.float32), step=7, sampled=False)
    path = run.write()
    page = page_of(path)
    assert page.run.training is None
    assert [plane.metric for plane in page.run.planes] == ["amax", "nonfinite"]
    assert [band.word for band in page.metrics[0].bands] == ["2^0 and more"]
    assert page.run.notes == ()
    check(path, page)


def test_nothing_recorded_gives_an_empty_run(empty_run: Run) -> None:
    shown = page_run(empty_run)
    assert (shown.layers, shown.planes, shown.training, shown.distributions) == ((), (), None, ())
    assert page_runs([empty_run, empty_run], ["a", "b"])[1].first_steps.size == 0
    assert merge_columns(shown, 2).first_steps.size == 0


def test_logged_statistics_are_shown_as_they_were_given(new_run: NewRun) -> None:
    run = new_run()
    key = {"layer": "fc", "tensor": "x", "pass": "forward", "microbatch": 0, "call": 0}
    for step, overflow in ((10, 0.5), (20, 0.25)):
        run.add_row("tensors", **key, step=step, seq=step, status="imported", amax=8.0, sampled=False)
        for statistic, value in (("underflow_all", 0.125), ("overflow", overflow)):
            about = {"recipe": None if statistic == "overflow" else "mxfp8", "columnwise": False, "at_floor": False}
            run.add_row("statistics", **key, **about, step=step, seq=step, statistic=statistic, value=value)
    with open_run(run.write(), threads=1) as opened_run:
        shown = page_run(opened_run)
        check_planes(opened_run, shown, every=1)
    assert [(plane.metric, plane.recipe, plane.values.tolist()) for plane in shown.planes] == [
        ("amax", None, [[8.0, 8.0]]), ("underflow_given", "mxfp8", [[0.125, 0.125]]),
        ("overflow_given", None, [[0.5, 0.25]]),
    ]  # fmt: skip


def test_a_sample_with_gemms_and_blocks(repository: Path) -> None:
    with open_run(repository / "sample_dumps" / "gpt-outlier", threads=1) as run:
        shown = page_run(run)
        check_planes(run, shown, every=23)
    planes = {(plane.metric, plane.operand, plane.recipe): plane.fmt for plane in shown.planes}
    assert planes["gemm_sqnr_db", "fprop", "nvfp4"] == "E2M1 x E2M1"
    assert planes["gemm_rel_l2", "wgrad", "delayed"] == "E5M2 x E4M3"
    assert planes["sqnr_db", "x", "mxfp8"] == "E4M3"
    assert len({(shown.layer, shown.tensor, shown.step) for shown in shown.distributions}) == 105
