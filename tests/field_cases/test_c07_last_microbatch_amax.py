"""C07: of a step's micro-batches only the last one's amax reaches the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.formats import E4M3
from fp8debug.replay import ScaleInForce

if TYPE_CHECKING:
    from tests.field_cases.conftest import Opened, Replay


def uniform(amax: float, seed: int) -> torch.Tensor:
    x = (torch.rand(64, 64, generator=torch.Generator().manual_seed(seed)) * 2 - 1) * amax
    x[0, 0] = amax
    return x


def test_every_microbatch_is_judged_by_itself(replay: Replay, opened: Opened) -> None:
    scale = np.float32(224)
    last = ScaleInForce("delayed", E4M3, False, scale, 1 / scale, 2.0, 16, 0, 10, 0, "ok")
    for microbatch, amax in enumerate((8.0, 1.0, 1.0, 2.0)):
        replay.observe("x", uniform(amax, microbatch), microbatch=microbatch, framework=(last,))
    replay.session.close()
    run = opened()
    first, *others = run.sql(
        "select scale_gap_bits, overflow, cosine, sqnr_db from tensor_errors where source = 'framework' "
        "order by microbatch"
    ).fetchall()
    assert first == (
        pytest.approx(2.0), pytest.approx(0.74, rel=0.05), pytest.approx(0.928, abs=0.005), pytest.approx(3.7, abs=0.3)
    )  # fmt: skip
    for _, overflow, _, sqnr_db in others:
        assert (overflow, sqnr_db) == (0, pytest.approx(31.7, abs=0.5))
    ((worst, used, seen),) = run.sql(
        "select max(scale_gap_bits), any_value(amax_used), max(amax) from scale_gaps where source = 'framework'"
    ).fetchall()
    assert (worst, used, seen) == (pytest.approx(2.0), 2.0, 8.0)
    ((summary,),) = run.sql("select worst_sqnr_db from layer_summary where recipe = 'delayed'").fetchall()
    assert summary == pytest.approx(3.7, abs=0.3)
    (found,) = diagnose(run)
    assert (found.rule, found.severity) == ("microbatch_amax_lost", "error")
    assert "micro-batch 0, the amax is 8 and the scale 2.0 bits too large; 7" in found.message
    numbers = [float(entry.value) for entry in found.evidence]
    assert numbers == [pytest.approx(2.0), pytest.approx(74, rel=0.05), pytest.approx(3.7, abs=0.3)]


CASES = {f"{kept}_{n}": (kept, n) for kept in ("last", "largest", "each") for n in (2, 4)}
"""What reaches the history of so many micro-batches; `each`: it is rolled at every one, as a framework may."""


@pytest.mark.parametrize("replay", [{"layers": tuple(CASES)}], indirect=True)
def test_the_history_shows_what_it_was_given(replay: Replay, opened: Opened) -> None:
    histories: dict[str, list[float]] = {layer: [] for layer in CASES}
    for step in range(6):
        for layer, (kept, n_microbatches) in CASES.items():
            amaxes = [*[8.0 + step / 4, 1.0, 1.5][: n_microbatches - 1], 2.5 + step / 8]
            history = histories[layer]
            before = list(history)
            for microbatch, amax in enumerate(amaxes):
                seen = history if kept == "each" else before
                scale = np.float32(448 / max(seen, default=448.0))
                given = ScaleInForce("delayed:amax_history_len=32", E4M3, False, scale, 1 / scale, None, 32,
                                     32 - len(seen), len(seen), None, "ok" if seen else "warmup")  # fmt: skip
                x = uniform(amax, 10 * step + microbatch)
                replay.observe("x", x, step=step, microbatch=microbatch, layer=layer, framework=(given,))
                if kept == "each":
                    history.append(amax)
            if kept != "each":
                history.append(amaxes[-1] if kept == "last" else max(amaxes))
    replay.session.close()
    findings = diagnose(opened())
    told = {place.layer: (found, place) for found in findings for place in found.places}
    assert told.keys() == {"last_2", "last_4"}
    for found, place in told.values():
        assert (found.rule, found.severity, place.n_steps) == ("microbatch_amax_lost", "error", 5)
        assert "micro-batch 0" in place.message
