"""C43: scales of the KV cache that are absent or 1.0: decided by the magnitudes, and by the worst channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, ComparedTensor, audit_checkpoint

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Replay

ATTENTION = "model.layers.{}.self_attn"
CHANNEL = 3


@pytest.fixture
def keys(normal: Normal) -> torch.Tensor:
    """512 keys of 128 channels, of which one is 15 times as large: amax about 1,000."""
    k = normal(512, 128, std=20, seed=6)
    k[:, CHANNEL] *= 15
    return k


Put = Callable[[str, dict[str, torch.Tensor]], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """`put(folder, tensors)`: a checkpoint of one file."""

    def write(folder: str, tensors: dict[str, torch.Tensor]) -> Path:
        (tmp_path / folder).mkdir()
        save_file(tensors, tmp_path / folder / "model.safetensors")
        return tmp_path / folder

    return write


def model(layers: int, k_scale: float) -> dict[str, torch.Tensor]:
    made = {}
    for layer in range(layers):
        base = ATTENTION.format(layer)
        made[f"{base}.k_proj.weight"] = torch.full((8, 8), 0.02, dtype=torch.bfloat16)
        made[f"{base}.k_proj.k_scale"] = torch.tensor(k_scale)
        made[f"{base}.v_proj.v_scale"] = torch.tensor(0.01)
    return made


def of(audit: Audit, check: str) -> list[str]:
    return [place.message for one in audit.findings if one.check == check for place in one.places]


@pytest.mark.parametrize("replay", [{"tensors": ["key"], "detail": ["channels"]}], indirect=True)
def test_scale_one_judged_by_the_keys_of_a_run(replay: Replay, keys: torch.Tensor, put: Put, normal: Normal) -> None:
    replay.observe("key", keys, layer=ATTENTION.format(0))
    replay.observe("key", normal(512, 128, std=8, seed=1), layer=ATTENTION.format(1))
    replay.session.close()
    audit = audit_checkpoint(put("model", model(2, 1.0)), run=replay.path)
    (said,) = of(audit, "kv_scale_clips")
    clipped = float((keys.bfloat16().float().abs() >= 464).float().mean())
    assert "layers.0.self_attn.k_proj.k_scale is 1, and keys of model.layers.0.self_attn reach" in said
    assert f"{100 * clipped:.2g} % of all are clipped" in said
    assert f"the worst channel is {CHANNEL}" in said
    assert audit.n_errors == 1
    assert "the scale of keys is 1.0 in 2 of 2 layers" in of(audit, "kv_scale_one")[0]
    calibrated = float(keys.abs().max()) / 448
    fine = audit_checkpoint(put("calibrated", model(2, calibrated)), run=replay.path)
    assert fine.n_errors == 0
    assert any("scales of keys hold all that the run had in 2 layers" in one for one in fine.comparisons[0].notes)


def compared(audit: Audit) -> ComparedTensor:
    (one,) = audit.comparisons[0].tensors
    return one


def test_a_dumped_cache_against_the_keys(keys: torch.Tensor, put: Put, normal: Normal) -> None:
    def codes(k: torch.Tensor, scale: float, folder: str) -> Path:
        cast = (k / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return put(folder, {"k_cache": cast, "k_cache_scale": torch.tensor(scale)})

    large = put("large", {"k_cache": keys})
    clipped = audit_checkpoint(codes(keys, 1.0, "clipped"), [large], dialect="multiplies")
    assert compared(clipped).sqnr_db == pytest.approx(14.1, abs=0.5)
    assert compared(clipped).verdict == "different"
    assert clipped.n_errors
    (said,) = of(clipped, "column_clipped")
    share = float((keys[:, CHANNEL].abs() >= 432).float().mean())  # what rounds to 448, and all beyond
    assert f"{100 * share:.1f} % of column {CHANNEL} are at 448" in said
    right = audit_checkpoint(codes(keys, float(keys.abs().max()) / 448, "right"), [large], dialect="multiplies")
    assert compared(right).sqnr_db == pytest.approx(31.7, abs=0.5)
    assert (compared(right).verdict, right.n_errors) == ("faithful", 0)
    small = normal(512, 128, std=7, seed=2)
    fine = audit_checkpoint(codes(small, 1.0, "fine"), [put("small", {"k_cache": small})], dialect="multiplies")
    assert (compared(fine).verdict, fine.n_errors, of(fine, "column_clipped")) == ("faithful", 0, [])
