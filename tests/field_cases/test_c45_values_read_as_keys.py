"""C45: values read with the scale of keys: the cosine is perfect and the values are 49 times too large."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import audit_checkpoint

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal


def scale_of(x: torch.Tensor) -> float:
    return float(x.abs().max()) / 448


def put(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "cache.safetensors")
    return folder


def codes(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def test_the_scale_of_the_other_role(tmp_path: Path, normal: Normal) -> None:
    k, v = normal(512, 128, std=14), normal(512, 128, std=0.3, seed=1)
    own, other = scale_of(v), scale_of(k)
    original = put(tmp_path / "original", {"k_cache": k, "v_cache": v})
    keys = {"k_cache": codes(k, other), "k_cache_scale": torch.tensor(other)}
    wrong = put(tmp_path / "wrong", keys | {"v_cache": codes(v, own), "v_cache_scale": torch.tensor(other)})
    audit = audit_checkpoint(wrong, [original], dialect="multiplies")
    found = {one.name: one for one in audit.comparisons[0].tensors}
    assert found["k_cache"].verdict == "faithful"
    assert found["v_cache"].gain == pytest.approx(other / own, rel=0.01)
    assert found["v_cache"].gain == pytest.approx(48.8, rel=0.1)
    assert found["v_cache"].cosine == pytest.approx(0.9997, abs=2e-4)
    assert found["v_cache"].sqnr_db == pytest.approx(-33.6, abs=1)
    assert audit.n_errors >= 1
    told = [place for one in audit.findings if one.severity == "error" for place in one.places]
    assert {place.tensor for place in told} == {"v_cache"}

    both = put(tmp_path / "both", keys | {"v_cache": codes(v, other), "v_cache_scale": torch.tensor(other)})
    harmless = audit_checkpoint(both, [original], dialect="multiplies")
    assert {one.verdict for one in harmless.comparisons[0].tensors} == {"faithful"}
    assert harmless.n_errors == 0
