"""C26: scales that were dropped, so that raw codes are read as values."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

ROLES = ("self_attn.q_proj", "mlp.up_proj", "mlp.gate_proj")
HF = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
RANDOM = torch.Generator().manual_seed(26)


def model(dropped: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    tensors = {}
    for layer in range(4):
        for role in ROLES:
            blocks = torch.randn(2, 128, 2, 128, generator=RANDOM) * 0.035
            scale = blocks.abs().amax((1, 3)) / 448
            name = f"model.layers.{layer}.{role}.weight"
            tensors[name] = (blocks / scale[:, None, :, None]).reshape(256, 256).to(torch.float8_e4m3fn)
            if name not in dropped:
                tensors[f"{name}_scale_inv"] = scale
    return tensors


def audited(folder: Path, tensors: dict[str, torch.Tensor]) -> Audit:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(HF))
    return audit_checkpoint(folder)


def test_codes_without_a_scale_and_a_scale_without_codes_are_both_named(tmp_path: Path) -> None:
    lost = "model.layers.2.mlp.gate_proj.weight"
    tensors = model((lost,)) | {"model.layers.9.mlp.gate_proj.weight_scale_inv": torch.ones(2, 2)}
    audit = audited(tmp_path, tensors)
    found = {finding.check: finding for finding in audit.findings if finding.severity == "error"}
    assert [place.tensor for place in found["scale_missing"].places] == [lost]
    assert f"ORPHAN WEIGHT {lost}: F8_E4M3 codes and no weight_scale_inv" in found["scale_missing"].message
    assert "read as values they reach 448" in found["scale_missing"].message
    (orphan,) = found["scale_orphan"].places
    assert "ORPHAN SCALE model.layers.9.mlp.gate_proj.weight_scale_inv" in orphan.message


def test_all_gate_projections_without_scales(tmp_path: Path) -> None:
    lost = tuple(f"model.layers.{layer}.mlp.gate_proj.weight" for layer in range(4))
    (missing,) = (one for one in audited(tmp_path, model(lost)).findings if one.check == "scale_missing")
    assert {place.tensor for place in missing.places} == set(lost)


def test_scales_of_layers_that_stayed_in_bf16_are_a_warning(tmp_path: Path) -> None:
    tensors = model()
    name = "model.layers.1.mlp.gate_proj.weight"
    tensors[name] = torch.randn(256, 256, generator=RANDOM).bfloat16() * 0.035
    orphans = [one for one in audited(tmp_path, tensors).findings if one.check == "scale_orphan"]
    assert [(one.severity, one.places[0].tensor) for one in orphans] == [("warning", f"{name}_scale_inv")]


def test_a_whole_model_has_nothing_to_say(tmp_path: Path) -> None:
    audit = audited(tmp_path, model())
    assert [finding for finding in audit.findings if finding.severity in ("error", "warning")] == []
