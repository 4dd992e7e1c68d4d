"""C41, with a reference that has the valid rows alone: they are compared, and what is beyond is padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

NAME = "layers.0.fc.weight"


def audited(folder: Path, *, first_nan: int) -> Audit:
    """96 rows against 64, NaN from one row on."""
    x = 0.03 * torch.randn(64, 256, generator=torch.Generator().manual_seed(41))
    scale = x.abs().amax() / 448
    codes = torch.zeros(96, 256, dtype=torch.uint8)
    codes[:64] = (x / scale).to(torch.float8_e4m3fn).view(torch.uint8)
    codes[first_nan:] = 0x7F
    save_file({NAME: codes.view(torch.float8_e4m3fn), f"{NAME}_scale": scale}, folder / "fp8.safetensors")
    save_file({NAME: x}, folder / "master.safetensors")
    return audit_checkpoint(folder / "fp8.safetensors", [folder / "master.safetensors"])


def test_nan_in_padding_is_a_warning_and_valid_rows_are_faithful(tmp_path: Path) -> None:
    audit = audited(tmp_path, first_nan=64)
    (tensor,) = audit.comparisons[0].tensors
    assert tensor.verdict == "faithful" and tensor.n == 64 * 256
    assert tensor.cosine == pytest.approx(0.9997, abs=2e-4)
    assert any("has 96 rows, the reference 64" in note for note in audit.comparisons[0].notes)
    (finding,) = [one for one in audit.findings if one.severity in ("error", "warning")]
    assert (finding.check, finding.severity) == ("padding_nonfinite", "warning")
    assert "32 padded rows non-finite" in finding.message


def test_nan_in_the_last_valid_row_is_an_error_and_not_taken_for_padding(tmp_path: Path) -> None:
    audit = audited(tmp_path, first_nan=63)
    errors = {one.check: one.message for one in audit.findings if one.severity == "error"}
    assert set(errors) == {"code_nan", "values_differ"}
    assert all("row 63" in message for message in errors.values())
    assert "256 values that are not finite here (row 63)" in errors["values_differ"]
    assert any("32 padded rows non-finite" in one.message for one in audit.findings if one.severity == "warning")
