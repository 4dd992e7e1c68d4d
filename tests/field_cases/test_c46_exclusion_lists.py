"""C46: exclusion lists that match too little or too much: what the configuration, the file and the run say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

LAYERS = 6
RANDOM = torch.Generator().manual_seed(46)


def model(prefix: str, *, fused_is_quantised: bool) -> dict[str, torch.Tensor]:
    """A router in BF16 beside projections."""
    made = {}
    for layer in range(LAYERS):
        for role, is_quantised in (("gate", False), ("gate_up_proj", fused_is_quantised), ("down_proj", True)):
            name = f"{prefix}.layers.{layer}.mlp.{role}.weight"
            weight = torch.randn(128, 128, generator=RANDOM) * 0.02
            if is_quantised:
                made[f"{name}_scale_inv"] = weight.abs().max().reshape(1, 1) / 448
                made[name] = (weight / made[f"{name}_scale_inv"]).to(torch.float8_e4m3fn)
            else:
                made[name] = weight.bfloat16()
    return made


def audited(folder: Path, tensors: dict[str, torch.Tensor], excluded: list[str]) -> Audit:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": excluded}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantised}))
    return audit_checkpoint(folder)


def loud(audit: Audit) -> dict[str, list[str]]:
    return {
        one.check: [place.message for place in one.places]
        for one in audit.findings
        if one.severity in ("error", "warning")
    }


@pytest.mark.parametrize("fused_is_quantised", [True, False])
def test_a_pattern_for_the_router_that_also_takes_the_projection(tmp_path: Path, fused_is_quantised: bool) -> None:
    tensors = model("model", fused_is_quantised=fused_is_quantised)
    found = loud(audited(tmp_path, tensors, ["lm_head", "mlp.gate"]))
    (message,) = found["pattern_meant_for_another"]
    assert f"{LAYERS} such modules: model.layers.*.mlp.gate_up_proj" in message
    assert "pattern meant for another module?" in message
    assert found.keys() == {"pattern_meant_for_another"}


def test_patterns_with_the_other_prefix(tmp_path: Path) -> None:
    tensors = model("model.language_model", fused_is_quantised=True)
    patterns = [f"model.layers.{layer}.mlp.gate" for layer in range(LAYERS)]
    found = loud(audited(tmp_path, tensors, ["lm_head", *patterns]))
    (message,) = found["pattern_with_other_prefix"]
    assert message.startswith(
        "6 entries match nothing: they are written for names that begin with `model.`, the file's begin with "
        "`model.language_model.`."
    )
    assert "in BF16" in message


def test_a_layer_that_is_excluded_and_stored_as_codes(tmp_path: Path) -> None:
    tensors = model("model", fused_is_quantised=True)
    audit = audited(tmp_path, tensors, ["lm_head", "model.layers.3.mlp.down_proj"])
    assert loud(audit) == {
        "excluded_but_codes": [
            "model.layers.3.mlp.down_proj: the configuration says high precision (`model.layers.3.mlp.down_proj`), the "
            "file says F8_E4M3."
        ]
    }
    assert audit.n_errors == 1


def test_a_layer_in_high_precision_that_nobody_excludes(tmp_path: Path) -> None:
    tensors = model("model", fused_is_quantised=True)
    name = "model.layers.2.mlp.down_proj.weight"
    tensors[name] = torch.randn(128, 128, generator=RANDOM).bfloat16() * 0.02
    del tensors[f"{name}_scale_inv"]
    routers = [f"model.layers.{layer}.mlp.gate" for layer in range(LAYERS)]
    found = loud(audited(tmp_path, tensors, routers))
    assert found.pop("quantised_but_not_codes") == [
        "model.layers.2.mlp.down_proj: the configuration says quantised, the file says BF16."
    ]
