"""C23: FP8 copies of weights that outlive the optimizer step: the GEMMs read the weights of an earlier step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.analysis.diagnosis import Finding, diagnose
from fp8debug.formats import E4M3
from fp8debug.hooks.observed import Payload

if TYPE_CHECKING:
    from fp8debug.analysis import Run
    from tests.field_cases.conftest import Normal, Opened, Replay


def cast(w: torch.Tensor) -> Payload:
    scale_inv = w.abs().amax() / 448
    return Payload((w / scale_inv).clamp(-448, 448).to(torch.float8_e4m3fn), E4M3, scale_inv, "current")


def weights(normal: Normal, n: int = 5, rate: float = 1e-3) -> list[torch.Tensor]:
    """Steps of a sign optimizer."""
    made = [normal(256, 256, std=0.02)]
    for step in range(1, n):
        made.append(made[-1] - rate * normal(256, 256, seed=step).sign())
    return made


def test_values_and_codes_at_fixed_positions(replay: Replay, opened: Opened, normal: Normal) -> None:
    w = normal(256, 256, std=0.03)
    payload = cast(w)
    replay.observe("w", w, payload=payload)
    replay.observe("w", w, microbatch=1, payload=payload)  # followed once a step
    replay.observe("x", w, payload=payload)
    replay.observe("w", w, step=1)  # nothing in low precision, nothing to follow
    blocks = payload.scale_inv * torch.tensor([1.0, 2.0]).reshape(2, 1).repeat_interleave(128, 0)
    replay.observe("w", w, step=2, payload=payload._replace(scale_inv=blocks, recipe="block"))
    replay.observe("w", payload.codes, step=3, payload=payload)
    replay.session.close()
    first, blocked, alone = (
        opened().sql('select stride, "values", codes, scale_inv from wsample order by step').fetchall()
    )
    stride = 17  # 65,536 / 4,096 = 16 would stay in every 16th column
    assert first[0] == stride
    assert first[1] == w.flatten()[::stride].tolist()
    assert first[2] == payload.codes.float().flatten()[::stride].tolist()
    assert first[3] == float(payload.scale_inv)
    assert blocked[2] == pytest.approx((payload.codes.float() * blocks).flatten()[::stride].tolist())
    assert blocked[3] == 1
    assert (alone[1], alone[2]) == (None, first[2])


def lag_of(run: Run) -> Finding:
    (found,) = (finding for finding in diagnose(run) if finding.rule == "weights_lag")
    return found


def test_a_copy_that_is_never_made_anew(replay: Replay, opened: Opened, normal: Normal) -> None:
    versions = weights(normal)
    for step, w in enumerate(versions):
        replay.observe("w", w, step=step, payload=cast(versions[0]))
    replay.session.close()
    run = opened()
    got = [db for (db,) in run.sql("select sqnr_db from payload_checks order by step").fetchall()]
    assert got == pytest.approx([31.5, 25.0, 22.4, 20.9, 19.7], abs=0.6)
    (lag,) = diagnose(run)
    assert (lag.rule, lag.severity, lag.confidence, lag.first_step, lag.last_step) == (
        "weights_lag", "error", "certain", 1, 4
    )  # fmt: skip
    assert lag.message.startswith("weights lag by 4 steps: at step 4 the GEMMs read a cast of the weight of step 0")
    assert lag.message.endswith("; the lag grows: the copy is not made anew")
    assert (lag.worst.n_steps, lag.worst.n_observed_steps) == (4, 5)
    assert lag.worst.db_lost == pytest.approx(31.5 - 19.7, abs=0.6)
    course = next(entry for entry in lag.evidence if "by step" in entry.title)
    assert course.value == ", ".join(f"{db:.1f}" for db in got)


def test_other_lags_and_what_is_none(replay: Replay, opened: Opened, normal: Normal) -> None:
    large, small = weights(normal, 6), weights(normal, 6, 2.5e-4)
    scale_inv = (large[0].abs().reshape(256, 2, 128).amax(-1) / 448).repeat_interleave(128, 1)
    blocks = Payload((large[0] / scale_inv).to(torch.float8_e4m3fn), E4M3, scale_inv, "block")
    for step, w in enumerate(large):
        noise = w * normal(256, 256, seed=90 + step, std=0.2)
        seen = {
            "one": (w, cast(large[max(0, step - 1)])),
            "three": (w, cast(large[max(0, step - 3)])),
            "small": (small[step], cast(small[max(0, step - 1)])),
            "rare": (w, cast(large[step - step % 3])),
            "blocks": (w, blocks),
            "right": (w, cast(w)),
            "noisy": (w, cast(w + noise)),
            "frozen": (large[0], cast(large[0])),
        }
        for layer, (value, payload) in seen.items():
            replay.observe("w", value, step=step, layer=layer, payload=payload)
    replay.session.close()
    places = {place.layer: place for place in lag_of(opened()).places}
    of_step = "at step 5 the GEMMs read a cast of the weight of step"
    assert {layer: place.message.partition(" (")[0] for layer, place in places.items()} == {
        "one": f"weights lag by one step: {of_step} 4",
        "three": f"weights lag by 3 steps: {of_step} 2",
        "small": f"weights lag by one step: {of_step} 4",
        "rare": f"weights lag by 2 steps: {of_step} 3",
        "blocks": f"weights lag by 5 steps: {of_step} 0",
    }
    grown = {layer for layer, place in places.items() if "the lag grows" in place.message}
    assert grown == {"blocks"}
    assert (places["rare"].n_steps, places["rare"].n_observed_steps) == (4, 6)


def test_steps_between_that_were_not_recorded(replay: Replay, opened: Opened, normal: Normal) -> None:
    versions = weights(normal, 21, 2e-3)
    for step in (0, 10, 20):
        replay.observe("w", versions[step], step=step, payload=cast(versions[max(0, step - 1)]))
    replay.session.close()
    found = lag_of(opened())
    assert (found.severity, found.confidence) == ("watch", "not_enough_evidence")
    assert found.needs is not None and "--every 1" in found.needs
