"""C13: late in training one value is far beyond the amax history; the steps after it are harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fp8debug.analysis.diagnosis import diagnose

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

DELAYED = {"recipes": ["current", "delayed:amax_history_len=16"], "layers": ("down_proj",)}


@pytest.mark.parametrize("replay", [DELAYED], indirect=True)
@pytest.mark.parametrize("spikes", [(20,), ()], ids=["spike", "none"])
def test_the_spike_is_clipping_and_what_follows_is_not(
    spikes: tuple[int, ...], replay: Replay, opened: Opened, normal: Normal
) -> None:
    for step in range(36):
        x = normal(64, 64, std=2.5, seed=step).clamp(-10, 10)
        x[0, 0] = 200 if step in spikes else 10
        replay.observe("x", x, step=step, layer="down_proj")
    replay.session.close()
    run = opened()
    findings = diagnose(run)
    if not spikes:
        assert findings == ()
        return
    after = run.sql(
        "select min(scale_gap_bits), max(scale_gap_bits), min(sqnr_db) from tensor_errors "
        "where step between 21 and 35 and recipe like 'delayed%'"
    ).fetchall()[0]
    assert after == (pytest.approx(-4.32, abs=0.01), pytest.approx(-4.32, abs=0.01), pytest.approx(31.6, abs=0.7))
    (found,) = findings
    assert (found.rule, found.severity) == ("clipping_spike", "warning")
    assert (found.worst.layer, found.worst.tensor) == ("down_proj", "x")
    assert (found.first_step, found.last_step) == (20, 20)
    assert "clipped" in found.message
    numbers = {entry.title: float(entry.value) for entry in found.evidence}
    assert numbers["scale gap, bits"] == pytest.approx(4.32, abs=0.01)
    assert numbers["SQNR, dB"] == pytest.approx(2.6, abs=0.5)
    assert 0 < numbers["overflow, %"] < 0.1


@pytest.mark.parametrize("replay", [DELAYED], indirect=True)
def test_spikes_that_come_back_are_clipping(replay: Replay, opened: Opened, normal: Normal) -> None:
    for step in range(80):
        x = normal(64, 64, std=2.5, seed=step).clamp(-10, 10)
        x[0, 0] = 200 if step % 20 == 19 else 10
        replay.observe("x", x, step=step, layer="down_proj")
    replay.session.close()
    (found,) = diagnose(opened())
    assert (found.rule, found.severity, found.worst.n_steps) == ("clipping", "error", 4)
