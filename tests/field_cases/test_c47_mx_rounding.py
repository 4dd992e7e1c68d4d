"""C47: the rounding mode of the writer of MX blocks is named from the stored exponents and the reference's maxima."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

NAME = "model.layers.0.mlp.up_proj.weight"
CONFIG = {"quantization_config": {"quant_method": "mxfp8"}}


def exponents(amax: torch.Tensor, mode: str) -> torch.Tensor:
    """E8M0 codes of block maxima, by the definitions: amax = significand x 2^exponent."""
    significand, exponent = torch.frexp(amax.double())
    significand, exponent = significand * 2, exponent - 1
    if mode == "NEAREST":
        return (torch.log2(amax.double() / 448).round() + 127).to(torch.uint8)
    beyond = {"FLOOR": 2.0, "RCEIL": 1.75, "CEIL": 1.0}[mode]
    return (exponent - 8 + (significand > beyond).to(torch.int32) + 127).to(torch.uint8)


def audited(folder: Path, x: torch.Tensor, scales: torch.Tensor) -> Audit:
    """The audit of blocks of 32 in E4M3 with these exponents, against what they were made from."""
    factors = torch.exp2(scales.double() - 127).float().repeat_interleave(32, 1)
    codes = (x / factors).clamp(-448, 448).to(torch.float8_e4m3fn)
    for name, tensors, config in (
        ("mx", {NAME: codes, f"{NAME}_scale": scales}, CONFIG),
        ("master", {NAME: x}, {}),
    ):
        (folder / name).mkdir(parents=True)
        save_file(tensors, folder / name / "model.safetensors")
        (folder / name / "config.json").write_text(json.dumps(config))
    return audit_checkpoint(folder / "mx", [folder / "master"])


def note_of(audit: Audit) -> str:
    (note,) = [one for one in audit.comparisons[0].notes if "block scales were rounded" in one]
    return note


@pytest.mark.parametrize(
    ("mode", "clipped", "loss", "sqnr"),
    [("FLOOR", 13, 12.5, 30.7), ("RCEIL", 0, 5.9, 31.5), ("CEIL", 0, 5.9, 31.5), ("NEAREST", 57, 29.3, 22.4)],
)
def test_each_mode_and_what_it_costs(tmp_path: Path, mode: str, clipped: float, loss: float, sqnr: float) -> None:
    x = torch.randn(512, 256, generator=torch.Generator().manual_seed(47))
    amax = x.view(512, 8, 32).abs().amax(2)
    note = note_of(audited(tmp_path, x, exponents(amax, mode)))
    assert f"rounded by {mode}: it fits all 4,096 blocks" in note
    told = re.search(r"([\d.]+)% of the blocks are clipped, .* up to ([\d.]+)%, ([\d.]+) dB", note)
    assert told is not None
    assert float(told[1]) == pytest.approx(clipped, abs=2)
    assert float(told[2]) == pytest.approx(loss, abs=0.1)
    assert float(told[3]) == pytest.approx(sqnr, abs=0.3)


def test_codes_of_chosen_maxima_and_what_they_do_not_tell(tmp_path: Path) -> None:
    maxima = torch.tensor([150.0, 448.0, 449.0, 500.0])
    codes = {mode: exponents(maxima, mode).tolist() for mode in ("FLOOR", "RCEIL", "CEIL")}
    assert codes == {"FLOOR": [126, 127, 127, 127], "RCEIL": [126, 127, 128, 128], "CEIL": [127, 128, 128, 128]}
    x = (torch.linspace(-1, 1, 32) * maxima[:, None]).repeat(32, 1)
    for mode, fitting in (("FLOOR", "by FLOOR"), ("RCEIL", "by RCEIL"), ("CEIL", "by CEIL")):
        scales = torch.tensor(codes[mode], dtype=torch.uint8)[:, None].repeat(32, 1)
        assert fitting in note_of(audited(tmp_path / mode, x, scales))
    # 449 and 500 alone: rounded up either way.
    one = x[2:4].repeat(64, 1)
    note = note_of(audited(tmp_path / "both", one, torch.full((128, 1), 128, dtype=torch.uint8)))
    assert "rounded by one of RCEIL and CEIL, which fit all 128 blocks alike" in note
