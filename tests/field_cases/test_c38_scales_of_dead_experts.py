"""C38: experts that no calibration text reached have scales that are infinite, NaN, zero or next to nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

SCALES = (0.01, 0.012, math.inf, 0.011, math.nan, 0.0, 1e-30, 0.009)
CONFIG = {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}
NAME = "model.layers.0.mlp.experts.{}.down_proj.{}"


def audited(folder: Path, kind: str, *, is_stacked: bool = False, zero_expert: int | None = None) -> Audit:
    """Eight experts of which the scales `kind` are SCALES; the others are healthy."""
    random = torch.Generator().manual_seed(38)
    tensors: dict[str, torch.Tensor] = {}
    for expert, planted in enumerate(SCALES):
        weight = torch.randn(32, 64, generator=random) * 0.03
        scale = weight.abs().amax() / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        if expert == zero_expert:
            codes = torch.zeros_like(weight).to(torch.float8_e4m3fn)
        healthy = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.01)}
        tensors |= {NAME.format(expert, what): one for what, one in (healthy | {kind: torch.tensor(planted)}).items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return audit_checkpoint(folder)


@pytest.mark.parametrize("kind", ["input_scale", "weight_scale"])
def test_four_of_eight_are_named_each_with_its_fault(kind: str, tmp_path: Path) -> None:
    found = {one.check: one for one in audited(tmp_path, kind).findings}
    tensors = {check: [place.tensor for place in one.places] for check, one in found.items()}
    assert sorted(tensors["scale_nonfinite"]) == [NAME.format(expert, kind) for expert in (2, 4)]
    assert tensors["scale_zero"] == [NAME.format(5, kind)]
    assert tensors["scale_far_off"] == [NAME.format(6, kind)]
    severities = [found[check].severity for check in ("scale_nonfinite", "scale_zero", "scale_far_off")]
    assert severities == ["error", "error", "warning"]
    for check in ("scale_nonfinite", "scale_zero", "scale_far_off"):
        message = found[check].places[0].message
        assert "(layer 0 expert " in message
        assert "4 are unusable or far off, 4 are fine: infinite (2), NaN (4), zero (5), far off (6)" in message
    assert found["scale_nonfinite"].message.startswith("Scales that are NaN or infinite (2 of 8): ")


def test_a_scale_of_zero_over_zeros_is_harmless(tmp_path: Path) -> None:
    audit = audited(tmp_path, "weight_scale", zero_expert=5)
    assert [one for one in audit.findings if one.check == "scale_zero"] == []
