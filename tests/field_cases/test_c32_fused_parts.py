"""C32: q, k and v with scales of their own, which a reader has to merge: legal, and costly where codes stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

ATTENTION = "model.layers.{}.self_attn"
SCALES = {"q_proj": 0.001, "k_proj": 0.004, "v_proj": 0.0005}


def parts(seed: int) -> dict[str, torch.Tensor]:
    """Weights of which each reaches 448 under its scale."""
    made = {}
    for at, (name, scale) in enumerate(SCALES.items()):
        w = torch.randn(128, 128, generator=torch.Generator().manual_seed(10 * seed + at))
        made[name] = w / w.abs().max() * 448 * scale
    return made


def codes(w: torch.Tensor, scale: float) -> torch.Tensor:
    return (w / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def audited(folder: Path, tensors: Mapping[str, torch.Tensor], **options: Any) -> Audit:
    folder.mkdir(exist_ok=True)
    save_file(dict(tensors), folder / "model.safetensors")
    return audit_checkpoint(folder, dialect="modelopt", **options)


def layer(name: str, w: torch.Tensor, scale: float, stored: float | None = None) -> dict[str, torch.Tensor]:
    stored = scale if stored is None else stored
    return {f"{name}.weight": codes(w, scale), f"{name}.weight_scale": torch.tensor(stored)}


def test_what_a_merge_costs(tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name, w in parts(0).items():
        tensors |= layer(f"{ATTENTION.format(0)}.{name}", w, SCALES[name])
    audit = audited(tmp_path / "own", tensors)
    (finding,) = (one for one in audit.findings if one.check == "fused_scales_differ")
    assert (finding.severity, audit.n_errors) == ("note", 0)
    (place,) = finding.places
    assert place.tensor == "model.layers.0.self_attn.{q_proj, k_proj, v_proj}"
    gains = {name: place.numbers[f"gain_{name}"] for name in SCALES}
    assert gains == pytest.approx({"q_proj": 4, "k_proj": 1, "v_proj": 8})
    unchanged = {name: place.numbers[f"unchanged_codes_sqnr_db_{name}"] for name in SCALES}
    # An error of 3 and of 7 times the value: -20 log10 3 and -20 log10 7.
    assert unchanged["q_proj"] == pytest.approx(-9.54, abs=0.01)
    assert unchanged["v_proj"] == pytest.approx(-16.90, abs=0.01)
    assert unchanged["k_proj"] is None
    # The ratios are powers of two: codes made anew lose next to nothing.
    for name in SCALES:
        assert place.numbers[f"requantised_sqnr_db_{name}"] == pytest.approx(31.5, abs=0.3)


def test_the_largest_scale_over_codes_of_the_others(tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    master: dict[str, torch.Tensor] = {}
    for number in range(4):
        for name, w in parts(number).items():
            module = f"{ATTENTION.format(number)}.{name}"
            tensors |= layer(module, w, SCALES[name], max(SCALES.values()))
            master[f"{module}.weight"] = w
    audit = audited(tmp_path / "merged", tensors)
    (finding,) = (one for one in audit.findings if one.check == "scale_shared_by_parts")
    assert (finding.severity, len(finding.places)) == ("error", 4)
    assert "share the scale 0.004, and the codes of each reach 448" in finding.message

    (tmp_path / "master").mkdir()
    save_file(master, tmp_path / "master" / "model.safetensors")
    held = audited(tmp_path / "merged", tensors, references=[tmp_path / "master"])
    compared = {one.name.split(".")[-2]: one for one in held.comparisons[0].tensors}
    assert compared["q_proj"].gain == pytest.approx(4, rel=0.01)
    assert compared["v_proj"].gain == pytest.approx(8, rel=0.01)
    assert compared["k_proj"].gain == pytest.approx(1, rel=0.01)
    assert compared["q_proj"].sqnr_db == pytest.approx(-9.5, abs=0.2)
    assert compared["v_proj"].sqnr_db == pytest.approx(-16.9, abs=0.2)
    assert compared["k_proj"].sqnr_db == pytest.approx(31.5, abs=0.5)
    assert all(one.cosine == pytest.approx(0.9997, abs=2e-4) for one in compared.values())
    assert {name for name, one in compared.items() if one.verdict == "different"} == {"q_proj", "v_proj"}


def test_one_scale_on_disk_for_three_parts_is_valid(tmp_path: Path) -> None:
    fused = torch.cat(list(parts(0).values()))
    scale = float(fused.abs().max()) / 448
    audit = audited(tmp_path / "fused", layer(f"{ATTENTION.format(0)}.qkv_proj", fused, scale))
    assert audit.findings == ()
    together: dict[str, torch.Tensor] = {}
    for number in range(4):
        made = parts(number)
        largest = float(torch.cat(list(made.values())).abs().max()) / 448
        for name, w in made.items():
            together |= layer(f"{ATTENTION.format(number)}.{name}", w, largest)
    assert not audited(tmp_path / "together", together).n_errors
