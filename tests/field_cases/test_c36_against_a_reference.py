"""C36, with a reference: bytes of E4M3 read as E4M3FNUZ have a gain of 0.5, and the right conversion has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import audit_checkpoint

NAME = "layers.0.fc.weight"
FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


def saved(path: Path, codes: torch.Tensor, scale: torch.Tensor | None = None) -> Path:
    save_file({NAME: codes} if scale is None else {NAME: codes, f"{NAME}_scale": scale}, path)
    return path


@pytest.fixture
def weight() -> torch.Tensor:
    x = 0.03 * torch.randn(128, 128, generator=torch.Generator().manual_seed(36))
    x[0, :8] = -1e-7  # -0 in E4M3: the byte 0x80, which is NaN in E4M3FNUZ
    return x


def test_gain_one_half_is_a_format_mixup_not_a_scale_error(weight: torch.Tensor, tmp_path: Path) -> None:
    scale = weight.abs().amax() / 448
    codes = (weight / scale).to(FN).view(torch.uint8).view(FNUZ)
    master = saved(tmp_path / "master.safetensors", weight)
    audit = audit_checkpoint(saved(tmp_path / "fp8.safetensors", codes, scale), [master])
    (tensor,) = audit.comparisons[0].tensors
    assert (tensor.verdict, tensor.n_nonfinite) == ("different", 8)
    assert tensor.gain == pytest.approx(0.4997, abs=5e-4) and tensor.cosine == pytest.approx(0.9996, abs=2e-4)
    assert tensor.sqnr_db == pytest.approx(6.0, abs=0.05)
    (finding,) = [one for one in audit.findings if one.check == "values_differ"]
    assert "format mix-up, not a scale error" in finding.message
    assert "8 values that are not finite here (row 0)" in finding.message
    assert finding.places[0].factor == 0.5


def test_the_right_conversion_is_another_encoding_of_equal_values(weight: torch.Tensor, tmp_path: Path) -> None:
    scale = weight.abs().amax() / 448
    codes = (weight / scale).to(FN).view(torch.uint8)
    converted = torch.where(codes == 0x80, torch.zeros_like(codes), codes)
    fn = saved(tmp_path / "fn.safetensors", codes.view(FN), scale)
    fnuz = saved(tmp_path / "fnuz.safetensors", converted.view(FNUZ), 2 * scale)
    for one, reference in ((fn, fnuz), (fnuz, fn)):
        audit = audit_checkpoint(one, [reference])
        assert [tensor.verdict for tensor in audit.comparisons[0].tensors] == ["recoded"]
        assert not [found for found in audit.findings if found.check == "values_differ"]
