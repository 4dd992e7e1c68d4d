"""C26: the magnitude of codes that are read as values, and of scales that are applied wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint
from fp8debug.analysis.checkpoint.records import CheckFinding, CheckPlace

ROLES = ("self_attn.q_proj", "mlp.up_proj", "mlp.gate_proj")
CONFIG = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
STD = 0.035


def model(seed: int = 26) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(4):
        for role in ROLES:
            weight = torch.randn(128, 256, generator=random) * STD
            scale = torch.stack([part.abs().amax() for part in weight.split(128, dim=1)])[None] / 448
            name = f"model.layers.{layer}.{role}.weight"
            tensors[name] = (weight / scale.repeat_interleave(128, 1)).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scale
    return tensors


def audited(folder: Path, tensors: dict[str, torch.Tensor]) -> Audit:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return audit_checkpoint(folder)


def finding(audit: Audit, check: str) -> CheckFinding:
    (found,) = (one for one in audit.findings if one.check == check)
    return found


def place_of(found: CheckFinding, tensor: str) -> CheckPlace:
    (place,) = (place for place in found.places if place.tensor == tensor)
    return place


def test_codes_without_scale_are_too_large_by_its_inverse(tmp_path: Path) -> None:
    tensors = model()
    lost = [f"model.layers.{layer}.mlp.gate_proj.weight" for layer in range(4)]
    factors = {name: float(1 / tensors.pop(f"{name}_scale_inv").mean()) for name in lost}
    found = finding(audited(tmp_path, tensors), "codes_as_values")
    assert found.severity == "error" and {place.tensor for place in found.places} == set(lost)
    for name in lost:
        place = place_of(found, name)
        assert place.factor == pytest.approx(factors[name], rel=0.1)
        assert place.numbers["amax"] == 448 and place.numbers["expected_rms"] == pytest.approx(STD, rel=0.05)
        assert "codes read as values, about 1/scale = " in place.message


def test_the_same_codes_written_as_bf16_are_found_too(tmp_path: Path) -> None:
    tensors = model()
    name = "model.layers.1.mlp.gate_proj.weight"
    tensors[name] = tensors[name].bfloat16()
    del tensors[f"{name}_scale_inv"]
    found = finding(audited(tmp_path, tensors), "codes_as_values")
    assert [place.tensor for place in found.places] == [name] and found.severity == "error"


def test_scales_of_one_are_no_scales(tmp_path: Path) -> None:
    tensors = {name: torch.ones_like(one) if "scale" in name else one for name, one in model().items()}
    found = finding(audited(tmp_path, tensors), "codes_as_values")
    assert len(found.places) == 12


@pytest.mark.parametrize("everywhere", [False, True])
def test_an_inverted_scale(everywhere: bool, tmp_path: Path) -> None:
    tensors = model()
    name = "model.layers.2.self_attn.q_proj.weight"
    for scale in [one for one in tensors if one.endswith("_scale_inv") and (everywhere or one.startswith(name))]:
        tensors[scale] = 1 / tensors[scale]
    found = finding(audited(tmp_path, tensors), "magnitude_too_large")
    assert found.severity == "error" and len(found.places) == (12 if everywhere else 1)
    place = place_of(found, name)
    assert f"with {name}_scale_inv inverted it would be 0.03" in place.message
    assert place.factor is not None and place.factor > 1e5


def test_exponents_read_as_integers(tmp_path: Path) -> None:
    tensors = model()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[f"{name}_scale_inv"] = torch.full((1, 2), 115.0)
    found = finding(audited(tmp_path, tensors), "magnitude_too_large")
    assert "integers from 115 to 115, as E8M0 exponents are" in place_of(found, name).message
    assert found.places[0].factor == pytest.approx(115 * 448 / (4 * STD), rel=0.3)  # amax is about four sigma


def test_a_whole_model_has_the_magnitude_of_weights(tmp_path: Path) -> None:
    tensors = model()
    tensors["model.layers.3.mlp.up_proj.weight_scale_inv"] *= 20  # unusual, no fault that could be told
    tensors["model.embed_tokens.weight"] = torch.randn(64, 256).bfloat16() * 3
    tensors["model.layers.0.input_layernorm.weight"] = torch.full((256,), 448.0).bfloat16()
    assert [one for one in audited(tmp_path, tensors).findings if one.severity in ("error", "warning")] == []


def test_a_plain_cast_is_named_with_what_it_loses(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    tensors = {
        f"blocks.{i}.fc.weight": (torch.randn(64, 64, generator=random) * 0.02).to(torch.float8_e4m3fn)
        for i in range(3)
    }
    save_file(tensors, tmp_path / "model.safetensors")
    audit = audit_checkpoint(tmp_path / "model.safetensors")
    found = finding(audit, "stored_unscaled")
    zero = float((tensors["blocks.0.fc.weight"].float() == 0).float().mean())
    subnormal = float(((tensors["blocks.0.fc.weight"].float().abs() < 2**-6).float()).mean()) - zero
    place = place_of(found, "blocks.0.fc.weight")
    assert found.severity == "note" and len(found.places) == 3
    assert place.numbers["zero"] == pytest.approx(zero) and place.numbers["subnormal"] == pytest.approx(subnormal)
    assert audit.n_errors == 0
