"""C20: with a loss curve alone nobody can say which layer it was; with the tensors the layer is named."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fp8debug.analysis.compare import Comparison, compare, make_curve

STEPS, ANOMALY = 40, 30
LOSS = [3 - 0.02 * step for step in range(STEPS)]
BASELINE = make_curve("bf16", range(STEPS), LOSS, grad_norm=[1.0] * STEPS)
LAYERS = ("mlp.0", "mlp.2", "mlp.4")
BROKEN = [loss if step < ANOMALY else math.nan for step, loss in enumerate(LOSS)]


def write(synthetic_run: ModuleType, path: Path, *, grow: str | None, capture: bool) -> Path:
    """A run whose loss is NaN from ANOMALY on; the values of `grow` are 2**6 times larger two steps before."""
    run = synthetic_run.SyntheticRun(path, status="closed", layers=[synthetic_run.layer_info(name) for name in LAYERS])
    rng = np.random.default_rng(0)
    for step, loss in enumerate(BROKEN):
        run.add_row("steps", step=step, loss=loss, grad_norm=1.0, sampled=step % 10 == 0)
        for layer in LAYERS if capture else ():
            values = rng.normal(0, 1, 512).astype(np.float32)
            factor = 64.0 if layer == grow and step >= ANOMALY - 2 else 1.0
            run.add(layer, "x", values * np.float32(factor), step=step, sampled=step % 10 == 0)
    written: Path = run.write()
    return written


def ask(path: Path) -> Comparison:
    return compare(BASELINE, [path])


def test_with_the_loss_alone_no_layer_is_named(synthetic_run: ModuleType, tmp_path: Path) -> None:
    path = write(synthetic_run, tmp_path / "run", grow=None, capture=False)
    for source in (path, make_curve("fp8", range(STEPS), BROKEN)):
        (pair,) = compare(BASELINE, [source]).pairs
        assert (pair.verdict.word, pair.triage.status, pair.triage.departures) == ("divergence", "not_recorded", ())
        text = " ".join(pair.verdict.sentences)
        assert "Insufficient evidence to name a layer" in text
        assert "Enable capture for" in text
    (pair,) = ask(path).pairs
    assert pair.triage.capture_layers == LAYERS


@pytest.mark.parametrize("layer", LAYERS[1:])
def test_with_tensors_the_layer_is_named(synthetic_run: ModuleType, tmp_path: Path, layer: str) -> None:
    (pair,) = ask(write(synthetic_run, tmp_path / "run", grow=layer, capture=True)).pairs
    assert pair.triage.status == "named"
    (departure,) = pair.triage.departures
    assert (departure.layer, departure.tensor, departure.measure) == (layer, "x", "amax")
    assert (departure.step, pair.triage.step) == (ANOMALY - 2, ANOMALY)
    assert departure.value is not None and departure.usual is not None
    # The factor planted, times how much the largest of 512 normals varies.
    assert departure.value / departure.usual == pytest.approx(64, rel=0.5)
    assert f"{layer} x at step {ANOMALY - 2}: amax" in " ".join(pair.verdict.sentences)


def test_tensors_that_did_what_they_always_do_name_nothing(synthetic_run: ModuleType, tmp_path: Path) -> None:
    (pair,) = ask(write(synthetic_run, tmp_path / "run", grow=None, capture=True)).pairs
    assert (pair.triage.status, pair.triage.departures) == ("nothing_left", ())
    assert "not enough evidence to name a layer" in " ".join(pair.verdict.sentences)


def test_two_more_differences_and_no_layer_is_named(synthetic_run: ModuleType, tmp_path: Path) -> None:
    path = write(synthetic_run, tmp_path / "run", grow="mlp.2", capture=True)
    baseline = make_curve("bf16", range(STEPS), LOSS, facts={"world_size": "8", "seed": "1"}, lr=[1e-3] * STEPS)
    (tmp_path / "run.manifest.json").write_text('{"seed": 2}')
    (pair,) = compare(baseline, [path]).pairs
    assert {difference.name for difference in pair.comparability.unintended} == {"world_size", "seed"}
    assert (pair.verdict.word, pair.triage.status, pair.triage.departures) == ("not_comparable", "not_comparable", ())
    assert "mlp" not in pair.verdict.headline + " ".join(pair.verdict.sentences)
