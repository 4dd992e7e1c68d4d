"""Rules on what is missing, silent or never asked for: experts, layers, precision, recomputation."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.diagnosis import Finding, diagnose
from fp8debug.analysis.scope import Scope

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]
VALUES = np.random.default_rng(0).normal(0, 1, (16, 32)).astype(np.float32)


def found(run: SyntheticRun) -> dict[str, Finding]:
    run.write()
    with open_run(run.path, threads=1) as opened:
        return {finding.rule: finding for finding in diagnose(opened)}


@pytest.mark.parametrize("name", ["moe.experts.{}.w1", "moe.w1[{}]"])
def test_one_dead_expert_of_eight(new_run: NewRun, synthetic_run: ModuleType, name: str) -> None:
    names = [name.format(number) for number in range(8)]
    run = new_run(layers=[synthetic_run.layer_info(n) for n in names])
    for step in range(20):
        for number, layer in enumerate(names):
            if number != 5:
                run.add(layer, "x", VALUES, step=step, sampled=False)
            elif "[" in name or step % 2:  # some are not even called without tokens
                run.add(layer, "x", VALUES[:0], step=step, sampled=False, status="no_tokens")
    finding = found(run)["dead_experts"]
    with open_run(run.path, threads=1, scope=Scope(layer="[34]")) as part:
        assert diagnose(part) == ()
    stack = "moe.experts" if "experts" in name else "moe.w1"
    assert finding.message == f"1 of 8 experts of {stack} never got a token: 5"
    assert (finding.severity, finding.layers, finding.first_step) == ("warning", (names[5],), 0)


def test_experts_of_zeros_and_of_few_steps(new_run: NewRun, synthetic_run: ModuleType) -> None:
    names = [f"experts[{number}]" for number in range(4)]
    run = new_run(layers=[synthetic_run.layer_info(n) for n in names])
    for number, layer in enumerate(names):
        run.add(layer, "x", VALUES * (number > 1), step=0)
    finding = found(run)["dead_experts"]
    assert finding.message == "2 of 4 experts of experts hold or get nothing but zeros: 0, 1"
    assert (finding.severity, finding.confidence) == ("watch", "not_enough_evidence")
    assert finding.layers == ("experts[0]", "experts[1]")


def event(run: SyntheticRun, kind: str, message: str = "said", **cells: Any) -> None:
    run.add_row("events", kind=kind, message=message, unix_s=0.0, **cells)


def test_events_are_findings_by_their_kind(new_run: NewRun, synthetic_run: ModuleType) -> None:
    run = new_run(layers=[synthetic_run.layer_info(name) for name in ("a", "b", "c", "head")])
    run.add("a", "x", VALUES, step=0)
    for layer in ("a", "b"):
        event(run, "recompute_differs", layer=layer, tensor="x", step=3)
        event(run, "precision_differs", "asked to run in float8_e4m3fn, but its GEMMs read bfloat16", layer=layer)
    event(run, "never_fired", "matched, but it never ran", layer="head")
    event(run, "disabled", "an error of ours", step=4)
    event(run, "unmatched_exclude", "--exclude 'lm' matches no layer (nearest names: head)")
    event(run, "reattached", "1 layer hooked again: c", step=2)
    event(run, "resumed", "segment 1 begins at step 2", step=2)
    run.write()
    with open_run(run.path, threads=1) as opened:
        findings = diagnose(opened)
    got = {(finding.rule, finding.severity, finding.message, finding.layers) for finding in findings}
    assert got == {
        ("recompute_differs", "warning", "said", ("a", "b")),
        ("nothing_in_fp8", "error", "FP8 was asked for and nothing ran in it: 2 of 4 layers were to run in FP8; a: "
         "asked to run in float8_e4m3fn, but its GEMMs read bfloat16", ("a", "b")),
        ("records_missing", "watch", "head left no records: matched, but it never ran", ("head",)),
        ("records_missing", "error", "an error of ours", ()),
        ("unmatched_pattern", "warning", "--exclude 'lm' matches no layer (nearest names: head)", ()),
        ("hooks_lost", "note", "1 layer hooked again: c", ()),
    }  # fmt: skip


def test_emulation_that_reached_no_layer(new_run: NewRun, synthetic_run: ModuleType) -> None:
    run = new_run(options={"emulate": "current"}, layers=[synthetic_run.layer_info("a")])
    run.add("a", "x", VALUES, step=0)
    assert found(run)["nothing_in_fp8"].message.startswith("current was to be emulated, and no layer is")


def test_records_that_end_or_are_missing(new_run: NewRun) -> None:
    run = new_run()
    for step in range(10):
        run.add_row("steps", step=step, sampled=True)
        if step == 4:
            continue  # a part that is gone
        run.add("a", "x", VALUES, step=step)
        if step < 6:
            run.add("lost", "x", VALUES, step=step)
        if step % 2 == 0 and step < 6:
            run.add("now and then", "x", VALUES, step=step)
    findings = found(run)
    assert set(findings) == {"hooks_lost", "records_missing"}
    with open_run(run.path, threads=1, scope=Scope(layer="now")) as part:
        assert diagnose(part) == ()
    lost, gap = findings["hooks_lost"], findings["records_missing"]
    assert (lost.severity, lost.layers, lost.first_step) == ("warning", ("lost",), 6)
    assert lost.message == "recorded in all 5 sampled steps to step 5 and in none of the 4 after it"
    assert gap.message == "sampled step 4 has no records: a part of the files is missing"


def test_outlier_channel_that_grows(new_run: NewRun) -> None:
    """Of channels, of values where there are none, and not where all grow alike or only jump."""
    rng = np.random.default_rng(1)
    run = new_run()
    for step in range(12):
        noise = rng.normal(0, 1, (64, 32)).astype(np.float32) * np.float32(rng.uniform(0.8, 1.25))
        outlier = noise.copy()
        outlier[:, 7] *= 1.7 ** min(step, 8)  # until it has its size
        jump = noise.copy()
        jump[:, 3] *= 200.0 if step >= 6 else 1.0
        spike = noise.copy()
        spike[:, 3] *= 200.0 if step == 6 else 1.0
        single = noise.copy()
        single[5, 5] = 8 * 1.7**step
        for layer, x in {"outlier": outlier, "alike": noise * 2**step, "spike": spike, "jump": jump}.items():
            seq = run.add(layer, "x", x, step=step)
            sizes = np.abs(x).max(0)
            bins, counts = np.unique(np.floor(4 * np.log2(sizes)), return_counts=True)
            run.add_detail("channels", seq, axis="K", measure="amax", n_channels=32, n_zero=0, n_exact=0,
                           bins=bins.tolist(), counts=counts.tolist(), worst_channel=int(sizes.argmax()),
                           worst_value=float(sizes.max()))  # fmt: skip
        run.add("values", "x", single, step=step)
        run.add("noise", "x", noise, step=step)
    run.write()
    with open_run(run.path, threads=1) as opened:
        findings = [finding for finding in diagnose(opened) if finding.rule == "outlier_growing"]
    messages = {finding.worst.layer: finding.message for finding in findings}
    assert set(messages) == {"outlier", "values"}
    assert messages["outlier"].startswith("channel 7 along K has grown from ")
    assert messages["values"].startswith("the largest value has grown from ")
    assert {finding.severity for finding in findings} == {"watch"}


def test_one_rank_whose_gain_is_off(new_run: NewRun, synthetic_run: ModuleType) -> None:
    run = new_run(world_size=3)
    for step in range(3):
        for rank in range(3):
            seq = run.add("a", "x", VALUES, step=step, rank=rank)
            x2 = float((VALUES.astype(np.float64) ** 2).sum())
            factor = 0.25 if rank == 1 else 1.0
            run.add_detail("errors", seq, recipe="current", fmt="E4M3", alternate=False, source="payload",
                           scale_scope="rank", scale=1.0, n=VALUES.size, n_nonzero=VALUES.size, n_underflow=0,
                           n_overflow=0, sum_x2=x2, sum_q2=x2 * factor**2, sum_xq=x2 * factor,
                           sum_err2=x2 * (1 - factor) ** 2)  # fmt: skip
    finding = found(run)["rank_gain"]
    assert (finding.severity, finding.worst.rank, finding.worst.n_steps) == ("error", 1, 3)
    assert finding.message == "on rank 1 values come back 0.25 times what they were, on the other ranks 1 times"
