"""What rules and reports say of several ranks: the faulty one by name, the missing one, replicas that differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.report import build_report
from fp8debug.cli.render.json import report_json
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.terminal import render_report

NewRanks = Callable[..., Any]
N_STEPS = 24


@pytest.fixture
def normal(synthetic_run: ModuleType) -> Callable[..., Any]:
    """`normal(deviation)` draws BF16 values."""
    rng = np.random.default_rng(7)

    def draw(deviation: float, shape: tuple[int, ...] = (24, 32)) -> Any:
        return synthetic_run.as_bfloat16(rng.normal(0, deviation, shape))

    return draw


def text_of(report: Any) -> str:
    return " ".join(render_report(report, Looks(width=100), run_path="run").split())


def test_a_fault_on_one_rank_of_eight_is_not_averaged_away(new_ranks: NewRanks, normal: Callable[..., Any]) -> None:
    written = new_ranks(8)
    for step in range(N_STEPS):
        x = {rank: normal(1.0) for rank in range(8)}
        # One rank's values are so small that the scale all ranks share makes most of them zero.
        x[5] = normal(1e-7)
        written.give("fc", "x", x, step=step)
        written.give("fc", "dy", {rank: normal(1e-3) for rank in range(8)}, step=step)
    written.steps(range(N_STEPS))
    with open_run(written.write(), thresholds={"warmup_rolls": 4}) as run:
        rows = run.sql("select layer, tensor, recipe, reason from candidates").fetchall()
        assert [row[:3] for row in rows] == [("fc", "x", "delayed:amax_history_len=4")]
        assert "on rank 5 alone of 8" in rows[0][3]
        # Merged, nothing is to be seen: the seven others hold all the signal.
        worst = run.sql("select min(sqnr_db), any_value(worst_rank) from merged_error_ratios "
                        "where tensor = 'x' and scale_scope = 'group' and step >= 5").fetchall()  # fmt: skip
        assert worst[0][0] > 30
        assert worst[0][1] == 5
        spread = run.sql("select rank, amax_spread_bits, max_scale_gap_bits, is_worst from rank_spread "
                         "where tensor = 'x' and recipe like 'delayed%' order by rank").fetchall()  # fmt: skip
        assert [rank for rank, *_, is_worst in spread if is_worst] == [5]
        assert spread[5][1] == pytest.approx(23, abs=1)
        assert spread[5][2] == pytest.approx(-23, abs=1)
        # Under current scaling each rank has a scale of its own: no fault.
        assert run.sql("select count(*) from candidates where recipe = 'current'").fetchall() == [(0,)]


def test_small_pieces_prove_something_together(new_ranks: NewRanks, normal: Callable[..., Any]) -> None:
    written = new_ranks(4)
    for step in range(N_STEPS):
        deviation = 1e3 if step % 6 == 5 else 1.0  # beyond what the last four steps saw
        written.give("fc", "x", {r: normal(deviation, (8, 16)) for r in range(4)}, step=step)
    with open_run(written.write(), thresholds={"warmup_rolls": 4}) as run:
        # 128 elements a rank are too few to be judged, 512 are enough.
        seen = run.sql("select distinct rank, n_nonzero > 256 from sampled_evidence").fetchall()
        assert seen == [(None, True)]
        gaps = run.sql("select distinct rank is not null, n_nonzero > 256 from scale_gaps").fetchall()
        assert gaps == [(True, True)]
        (summary,) = run.sql("select n_records, n_steps from layer_summary where recipe like 'delayed%'").fetchall()
        assert summary == (N_STEPS, N_STEPS)
        assert run.sql("select tensor, n_hit_steps from candidates").fetchall() == [("x", 4)]


def test_missing_ranks_and_replicas_that_differ_stand_beside_the_verdict(
    new_ranks: NewRanks, normal: Callable[..., Any]
) -> None:
    written = new_ranks(4)
    for step in range(N_STEPS):
        ranks = [0, 1, 2] if step < 20 else [0, 2]
        written.give("fc", "x", {rank: normal(1.0) for rank in ranks}, step=step)
        w = normal(0.02)
        replicas = dict.fromkeys(ranks, w)
        if step >= 10:
            replicas[2] = np.roll(w, 1)
        written.give("fc", "w", replicas, step=step, placement="replicate", owners=dict.fromkeys(range(4), 0))
        written.give("out", "y", {rank: normal(1.0) for rank in ranks}, step=step, placement="partial")
    written.steps(range(N_STEPS), range(1))
    written.say(0, "fc", "out")
    written.say(1, "fc", status="failed", status_reason="OSError: gone")
    written.say(2, "fc", "head", status="disabled", status_reason="disk full")
    with open_run(written.write(), thresholds={"warmup_rolls": 4}) as run:
        assert run.sql("select layer, ranks from layers order by layer").fetchall() == [
            ("fc", [0, 1, 2]), ("head", [2]), ("out", [0])
        ]  # fmt: skip
        events = run.sql("select rank, step, message from events where kind = 'rank_missing' order by rank").fetchall()
        assert events == [
            (1, 19, "rank 1 recorded nothing after step 19, others went on to step 23: OSError: gone"),
            (2, 23, "rank 2 switched itself off, last recorded step 23: disk full"),
            (3, None, "rank 3 left no files"),
        ]
        report = build_report(run)
    assert report.verdict == "findings" and report.is_judged and not report.n_candidates
    assert {finding.rule for finding in report.findings} >= {"replicas_differ", "records_missing"}
    assert report.run.n_layers == 3
    assert report.ranks is not None
    assert (report.ranks.n_ranks, report.ranks.n_recorded, report.ranks.missing) == (4, 3, (3,))
    assert (report.ranks.n_sharded, report.ranks.n_replicated, report.ranks.n_partial) == (1, 1, 1)
    (differing,) = report.ranks.differing
    assert (differing.operands, differing.ranks, differing.differs, differing.first_step) == (
        ("fc w",), (2,), ("checksum",), 10
    )  # fmt: skip
    text = text_of(report)
    head, _, rest = text.partition("WHAT IS FINE")
    assert "ranks 4; rank 3 left no records; replicas disagree: fc w on rank 2, from step 10 on, in checksum" in head
    assert "1 operand in pieces; 1 in replicas; 1 partial sums, merged with nothing" in head
    assert "no candidate for BF16" in head.partition("verdict")[2]
    assert "but rank 3 left no records" in head.partition("verdict")[2]
    assert "replicas disagree: fc w on rank 2, from step 10 on, in checksum" in head.partition("verdict")[2]
    assert "But rank 3 left no records." in rest.partition("NO CANDIDATE")[2]
    kinds = [problem.kind for problem in report.problems]
    assert [kinds.count(kind) for kind in ("missing_rank", "rank_missing", "replicas_differ")] == [1, 2, 1]
    assert json.loads(report_json(report))["ranks"]["missing"] == [3]


def test_one_rank_is_what_it_was(new_ranks: NewRanks, normal: Callable[..., Any]) -> None:
    written = new_ranks(1)
    for step in range(8):
        written.give("fc", "x", {0: normal(1.0)}, step=step)
    with open_run(written.write(), thresholds={"warmup_rolls": 2}) as run:
        report = build_report(run)
        assert run.presence is None
        assert run.sql("from group_scales").fetchall() == []
        assert run.sql("select distinct scale_scope from error_ratios order by all").fetchall() == [
            ("rank",), ("record",)
        ]  # fmt: skip
    assert "ranks" not in json.loads(report_json(report))
