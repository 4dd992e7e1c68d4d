"""Exported checkpoints against the run that trained their weights: the last ones, older ones, other scales."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import E4M3
from fp8debug.hooks.observed import Payload

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Replay

LAYERS = ("a", "b", "c")


def cast(w: torch.Tensor) -> Payload:
    scale_inv = w.abs().amax() / 448
    return Payload((w / scale_inv).clamp(-448, 448).to(torch.float8_e4m3fn), E4M3, scale_inv, "current")


@pytest.fixture
def steps(replay: Replay, normal: Normal) -> list[dict[str, torch.Tensor]]:
    """Weights of three layers over four steps, recorded; they move by a tenth of their size in each."""
    made = [{layer: normal(64, 96, std=0.02, seed=at) for at, layer in enumerate(LAYERS)}]
    for step in range(1, 4):
        made.append({layer: w + normal(64, 96, std=0.002, seed=10 * step) for layer, w in made[-1].items()})
    for step, weights in enumerate(made):
        for layer, w in weights.items():
            replay.observe("w", w, step=step, layer=layer, payload=cast(w))
    replay.session.close()
    return made


def exported(folder: Path, payloads: Mapping[str, Payload], scale: float = 1.0, prefix: str = "") -> Path:
    tensors = {}
    for layer, payload in payloads.items():
        tensors[f"{prefix}{layer}.weight"] = payload.codes
        tensors[f"{prefix}{layer}.weight_scale"] = torch.as_tensor(payload.scale_inv) * scale
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def held(checkpoint: Path, run: Path) -> tuple[Audit, dict[str, str]]:
    audit = audit_checkpoint(checkpoint, dialect="modelopt", run=run)
    (comparison,) = audit.comparisons
    assert comparison.kind == "run"
    return audit, {one.name: one.verdict for one in comparison.tensors}


NAMES = [{"layers": LAYERS}]


@pytest.mark.parametrize("replay", NAMES, indirect=True)
def test_what_training_ended_with(replay: Replay, steps: list[dict[str, torch.Tensor]], tmp_path: Path) -> None:
    path = exported(tmp_path / "export", {layer: cast(w) for layer, w in steps[-1].items()}, prefix="model.")
    audit, verdicts = held(path, replay.path)
    assert verdicts == {f"model.{layer}.weight": "recoded" for layer in LAYERS}
    assert audit.n_errors == 0
    assert any("a is model.a" in note for note in audit.comparisons[0].notes)


@pytest.mark.parametrize("replay", NAMES, indirect=True)
def test_other_scales_and_older_weights(
    replay: Replay, steps: list[dict[str, torch.Tensor]], tmp_path: Path, normal: Normal
) -> None:
    doubled = exported(tmp_path / "doubled", {layer: cast(w) for layer, w in steps[-1].items()}, scale=2.0)
    audit, _ = held(doubled, replay.path)
    (finding,) = (one for one in audit.findings if one.check == "run_weights_differ")
    assert (finding.severity, len(finding.places)) == ("error", 3)
    assert [place.factor for place in finding.places] == pytest.approx([2, 2, 2])
    assert "its codes are those that training read; its scale is 2 times that of training" in finding.message

    mixed = {"a": cast(steps[-1]["a"]), "b": cast(steps[1]["b"]), "c": cast(normal(64, 96, std=0.02, seed=99))}
    audit, verdicts = held(exported(tmp_path / "mixed", mixed), replay.path)
    assert verdicts == {"a.weight": "recoded", "b.weight": "different", "c.weight": "different"}
    told = {place.tensor: place.message for one in audit.findings for place in one.places}
    assert "it is the weight of step 1, 2 steps before the last one recorded" in told["b.weight"]
    assert (
        "no factor makes it the weight of the run" in told["c.weight"] or "times those of the run" in told["c.weight"]
    )


@pytest.mark.parametrize("replay", NAMES, indirect=True)
def test_the_pair_of_a_run_is_a_checkpoint(replay: Replay, steps: list[dict[str, torch.Tensor]]) -> None:
    audit = audit_checkpoint(replay.path)
    (comparison,) = audit.comparisons
    assert {one.verdict for one in comparison.tensors} == {"faithful"}
    assert {one.name for one in comparison.tensors} == {f"{layer}.weight" for layer in LAYERS}
    assert audit.n_errors == 0


@pytest.mark.parametrize("replay", NAMES, indirect=True)
def test_a_run_whose_gemms_read_codes_of_another_scale(replay: Replay, normal: Normal) -> None:
    w = normal(64, 96, std=0.02)
    made = cast(w)
    replay.observe("w", w, layer="a", payload=made._replace(scale_inv=made.scale_inv * 4))
    replay.observe("w", w, layer="b", payload=made)
    replay.session.close()
    audit = audit_checkpoint(replay.path)
    differing = {one.name: one for one in audit.comparisons[0].tensors if one.verdict == "different"}
    assert set(differing) == {"a.weight"}
    assert differing["a.weight"].gain == pytest.approx(4, rel=0.01)
    assert audit.n_errors == 1


@pytest.mark.parametrize("replay", NAMES, indirect=True)
def test_weights_of_which_only_counts_are_known(replay: Replay, normal: Normal, tmp_path: Path) -> None:
    weights = {layer: normal(64, 96, std=0.02, seed=at) for at, layer in enumerate(LAYERS)}
    for layer, w in weights.items():
        replay.observe("w", w, layer=layer)
    replay.session.close()
    payloads = {layer: cast(w) for layer, w in weights.items()}
    payloads["b"] = payloads["b"]._replace(scale_inv=payloads["b"].scale_inv * 8)
    audit, verdicts = held(exported(tmp_path / "export", payloads), replay.path)
    assert verdicts == {}
    (finding,) = (one for one in audit.findings if one.check == "run_magnitude_differs")
    (place,) = finding.places
    assert place.tensor == "b.weight"
    assert place.factor == pytest.approx(8, rel=0.02)
    assert any("of 3 weights the run has no single values" in note for note in audit.comparisons[0].notes)


@pytest.mark.parametrize("replay", NAMES, indirect=True)
def test_a_run_of_another_model(replay: Replay, steps: list[dict[str, torch.Tensor]], tmp_path: Path) -> None:
    other = exported(tmp_path / "other", {"x.y": cast(steps[0]["a"])})
    with pytest.raises(
        Fp8DebugError, match=r"no weight of .* has the name of one in the checkpoint; got layers a, b, c"
    ):
        audit_checkpoint(other, dialect="modelopt", run=replay.path)
