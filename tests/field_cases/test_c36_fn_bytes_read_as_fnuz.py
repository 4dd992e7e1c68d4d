"""C36: bytes of E4M3 in a file that says E4M3FNUZ, and the reverse, told without a reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


def audited(folder: Path, dtype: torch.dtype, largest: float, labelled: torch.dtype, *, n: int = 128) -> Audit:
    """Three layers cast to `dtype` with scales by amax / largest, stored as `labelled`."""
    random = torch.Generator().manual_seed(36)
    tensors = {}
    for layer in range(3):
        weight = torch.randn(n, n, generator=random) * 0.03
        weight[0, :8] = -1e-7  # these become -0 where the format has it
        scale = weight.abs().amax() / largest
        tensors[f"layers.{layer}.fc.weight"] = (weight / scale).to(dtype).view(torch.uint8).view(labelled)
        tensors[f"layers.{layer}.fc.weight_scale"] = scale
    save_file(tensors, folder / "model.safetensors")
    return audit_checkpoint(folder / "model.safetensors")


def checks(audit: Audit) -> set[str]:
    return {one.check for one in audit.findings if one.severity in ("error", "warning")}


def test_fn_bytes_in_a_file_that_says_fnuz(tmp_path: Path) -> None:
    audit = audited(tmp_path, FN, 448, FNUZ)
    assert checks(audit) == {"code_format_mixup"}
    (found,) = (one for one in audit.findings if one.check == "code_format_mixup")
    assert len(found.places) == 3 and {place.factor for place in found.places} == {0.5}
    assert "format mix-up, not a scale error" in found.message and "0x80" in found.message


def test_fnuz_bytes_in_a_file_that_says_fn(tmp_path: Path) -> None:
    audit = audited(tmp_path, FNUZ, 240, FN, n=256)
    assert checks(audit) == {"code_format_mixup"}
    (found,) = (one for one in audit.findings if one.check == "code_format_mixup")
    assert {place.factor for place in found.places} == {2.0}


@pytest.mark.parametrize(("dtype", "largest"), [(FN, 448), (FNUZ, 240), (FNUZ, 224), (FN, 240), (FN, 224)])
def test_files_that_say_what_they_hold(dtype: torch.dtype, largest: float, tmp_path: Path) -> None:
    audit = audited(tmp_path, dtype, largest, dtype)
    assert checks(audit) == set()
    named = [one.message for one in audit.findings if one.check == "code_maximum"]
    assert len(named) == (largest not in (448, 240) or (dtype, largest) == (FN, 240))
    assert all(f"is {largest}, not " in message for message in named)
