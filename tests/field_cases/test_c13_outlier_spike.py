"""C13: late in training one value is far beyond the amax history; the steps after it are harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fp8debug.analysis.diagnosis import diagnose

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

SPIKES = {"down_proj": (20,), "quiet": (), "often": (19, 39, 59, 79)}
OPTIONS = {"recipes": ["current", "delayed:amax_history_len=16"], "layers": tuple(SPIKES)}


@pytest.mark.parametrize("replay", [OPTIONS], indirect=True)
def test_the_spike_is_clipping_and_what_follows_is_not(replay: Replay, opened: Opened, normal: Normal) -> None:
    for step in range(80):
        for layer, spikes in SPIKES.items():
            x = normal(64, 64, std=2.5, seed=step).clamp(-10, 10)
            x[0, 0] = 200 if step in spikes else 10
            replay.observe("x", x, step=step, layer=layer)
    replay.session.close()
    run = opened()
    after = run.sql(
        "select min(scale_gap_bits), max(scale_gap_bits), min(sqnr_db) from tensor_errors "
        "where layer = 'down_proj' and step between 21 and 35 and recipe like 'delayed%'"
    ).fetchall()[0]
    assert after == (pytest.approx(-4.32, abs=0.01), pytest.approx(-4.32, abs=0.01), pytest.approx(31.6, abs=0.7))
    often, found = diagnose(run)
    assert (often.rule, often.severity, often.worst.layer, often.worst.n_steps) == ("clipping", "error", "often", 4)
    assert (found.rule, found.severity) == ("clipping_spike", "warning")
    assert [(place.layer, place.tensor) for place in found.places] == [("down_proj", "x")]
    assert (found.first_step, found.last_step) == (20, 20)
    assert "clipped" in found.message
    numbers = {entry.title: float(entry.value) for entry in found.evidence}
    assert numbers["scale gap, bits"] == pytest.approx(4.32, abs=0.01)
    assert numbers["SQNR, dB"] == pytest.approx(2.6, abs=0.5)
    assert 0 < numbers["overflow, %"] < 0.1
