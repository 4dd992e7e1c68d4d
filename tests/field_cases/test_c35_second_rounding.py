"""C35: quantised weights that were quantised again, rightly: a loss in all layers alike, and none is to blame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import audit_checkpoint

NAMES = [f"model.layers.{layer}.mlp.{role}_proj.weight" for layer in range(2) for role in ("gate", "up", "down")]
CONFIG = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}
Tensors = dict[str, torch.Tensor]


def spread(grid: torch.Tensor) -> torch.Tensor:
    return grid.repeat_interleave(128, 0).repeat_interleave(128, 1)


def quantised(x: torch.Tensor, *, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.view(2, 128, 2, 128).abs().amax((1, 3)) / 448
    if power_of_two:
        scale = torch.exp2(torch.ceil(torch.log2(scale.double()))).float()
    return (x / spread(scale)).to(torch.float8_e4m3fn), scale


def saved(folder: Path, tensors: Tensors, config: Mapping[str, object]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Master, file, and the file quantised again with scales that are powers of two."""
    random = torch.Generator().manual_seed(35)
    master, first, again = Tensors(), Tensors(), Tensors()
    for name in NAMES:
        std = spread(10 ** -(1 + torch.rand(2, 2, generator=random)))
        master[name] = (torch.randn(256, 256, generator=random) * std).bfloat16()
        first[name], scale = quantised(master[name].float(), power_of_two=False)
        first[f"{name}_scale_inv"] = scale
        again[name], again[f"{name}_scale_inv"] = quantised(first[name].float() * spread(scale), power_of_two=True)
    return (
        saved(tmp_path / "master", master, {}),
        saved(tmp_path / "file", first, CONFIG),
        saved(tmp_path / "again", again, CONFIG),
    )


def test_against_file_and_master_no_layer_is_flagged(chain: tuple[Path, Path, Path]) -> None:
    master, file, again = chain
    audit = audit_checkpoint(again, [master, file])
    to_master, to_file = audit.comparisons
    assert {tensor.verdict for tensor in (*to_master.tensors, *to_file.tensors)} == {"requantised"}
    assert median(tensor.rel_l2 or 0 for tensor in to_file.tensors) == pytest.approx(0.0255, abs=0.003)
    assert median(tensor.sqnr_db or 0 for tensor in to_file.tensors) == pytest.approx(32, abs=1)
    for tensor in to_master.tensors:
        assert tensor.sqnr_db == pytest.approx(28.8, abs=1.0) and tensor.healthy_sqnr_db == pytest.approx(31.5, abs=0.5)
    findings = [one for one in audit.findings if one.check in ("format_change", "second_rounding", "values_differ")]
    assert {(one.check, one.severity) for one in findings} == {("format_change", "note")}
    assert audit.n_errors == 0 and all("none stands out" in one.message for one in findings)

    # Which step cost what.
    three = audit.three_way
    assert three is not None and three.names == (str(master), str(file), str(again))
    links = {(link.name, link.reference): link for link in three.links}
    assert links[str(file), str(master)].n_faithful == 6
    assert links[str(again), str(file)].n_requantised == links[str(again), str(master)].n_requantised == 6
    assert f"{file} differs from {master} by one rounding" in three.verdict and "errors add up" in three.verdict


def test_the_file_itself_is_one_rounding(chain: tuple[Path, Path, Path]) -> None:
    master, file, _ = chain
    audit = audit_checkpoint(file, [master])
    assert {tensor.verdict for tensor in audit.comparisons[0].tensors} == {"faithful"}
    assert not [one for one in audit.findings if one.severity != "note"]


def test_one_layer_alone_is_named(chain: tuple[Path, Path, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    master, file, again = chain
    mixed = load_file(file / "model.safetensors")
    other = load_file(again / "model.safetensors")
    mixed |= {name: other[name] for name in (NAMES[1], f"{NAMES[1]}_scale_inv")}
    audit = audit_checkpoint(saved(tmp_path / "mixed", mixed, CONFIG), [master])
    (finding,) = [one for one in audit.findings if one.check == "second_rounding"]
    assert (finding.severity, [place.tensor for place in finding.places]) == ("watch", [NAMES[1]])
