"""C33: scales rounded up to powers of two, the codes left as they were: every block has a gain of its own, 1 to 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

NAME = "model.layers.0.mlp.up_proj.weight"
CONFIG = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}


def spread(grid: torch.Tensor) -> torch.Tensor:
    return grid.repeat_interleave(128, 0).repeat_interleave(128, 1)


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG if len(tensors) > 1 else {}))
    return folder


@pytest.fixture
def case(tmp_path: Path) -> tuple[Audit, torch.Tensor, torch.Tensor]:
    """The audit against the master, the scales that were, and those that are stored."""
    random = torch.Generator().manual_seed(33)
    std = 10 ** -(0.7 + 1.5 * torch.rand(4, 4, generator=random))
    x = (torch.randn(512, 512, generator=random) * spread(std)).bfloat16()
    scale = x.float().view(4, 128, 4, 128).abs().amax((1, 3)) / 448
    up = torch.exp2(torch.ceil(torch.log2(scale.double()))).float()
    codes = (x.float() / spread(scale)).to(torch.float8_e4m3fn)
    checkpoint = saved(tmp_path / "fp8", {NAME: codes, f"{NAME}_scale_inv": up})
    return audit_checkpoint(checkpoint, [saved(tmp_path / "master", {NAME: x})]), scale, up


def test_each_block_has_its_gain_and_the_cause_is_named(case: tuple[Audit, torch.Tensor, torch.Tensor]) -> None:
    audit, scale, up = case
    (tensor,) = audit.comparisons[0].tensors
    gains = up / scale
    assert tensor.block_gain_min == pytest.approx(float(gains.min()), rel=0.005)
    assert tensor.block_gain_max == pytest.approx(float(gains.max()), rel=0.005)
    assert (tensor.block, tensor.n_blocks) == ((128, 128), 16)
    # The cosine tells next to nothing, gain and SQNR do.
    assert tensor.cosine is not None and tensor.gain is not None and tensor.sqnr_db is not None
    assert tensor.cosine > 0.97 and 1.2 < tensor.gain < 1.9 and tensor.sqnr_db < 12
    assert tensor.hypotheses[0].name == "ceil_scale" and tensor.hypotheses[0].explains > 0.98
    (finding,) = [one for one in audit.findings if one.severity == "error"]
    assert finding.check == "values_differ" and [place.tensor for place in finding.places] == [NAME]
    assert f"{gains.min():.3g} to {gains.max():.3g} in its blocks of 128 x 128" in finding.message
    assert "rounded up to powers of two" in finding.message
