"""C39: one expert without its input scale: a slot that stays zero, and infinity for some prompts alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint


def model(layers: int, experts: int) -> dict[str, torch.Tensor]:
    made = {}
    random = torch.Generator().manual_seed(39)
    for layer in range(layers):
        for expert in range(experts):
            for role in ("gate_proj", "up_proj", "down_proj"):
                module = f"model.layers.{layer}.mlp.experts.{expert}.{role}"
                weight = torch.randn(64, 64, generator=random) * 0.02
                scale = weight.abs().max() / 448
                made[f"{module}.weight"] = (weight / scale).to(torch.float8_e4m3fn)
                made[f"{module}.weight_scale"] = scale
                made[f"{module}.input_scale"] = torch.tensor(0.013 + 0.001 * expert)
    return made


Holes = Callable[[Audit], list[str]]


@pytest.fixture
def holes() -> Holes:
    """What is said to be missing."""
    return lambda audit: [
        place.message for one in audit.findings if one.check == "tensor_missing" for place in one.places
    ]


def audited(folder: Path, tensors: dict[str, torch.Tensor]) -> Audit:
    save_file(tensors, folder / "model.safetensors")
    return audit_checkpoint(folder, dialect="modelopt")


@pytest.mark.parametrize("layers", [1, 4])
def test_the_hole_is_listed_with_its_layer_and_expert(tmp_path: Path, holes: Holes, layers: int) -> None:
    tensors = model(layers, 4)
    del tensors["model.layers.0.mlp.experts.2.up_proj.input_scale"]
    audit = audited(tmp_path, tensors)
    assert holes(audit) == [
        f"MISSING input_scale: layer 0 expert 2 (1 of {4 * layers}), in model.layers.0.mlp.experts.2.up_proj."
    ]
    assert audit.n_errors == 1


def test_an_expert_that_has_none_at_all(tmp_path: Path, holes: Holes) -> None:
    tensors = {name: one for name, one in model(2, 4).items() if "layers.1.mlp.experts.3." not in name}
    found = audited(tmp_path, tensors).findings
    assert [one.places[0].message for one in found if one.check == "number_missing"] == []  # two lists: no majority
    tensors = {name: one for name, one in model(2, 4).items() if "layers.1.mlp.experts.2." not in name}
    found = audited(tmp_path, tensors).findings
    assert [one.places[0].message for one in found if one.check == "number_missing"] == [
        "model.layers.1.mlp.experts has no 2 in layer 1: 0-1, 3 are there."
    ]


def test_no_hole_where_nothing_is_missing(tmp_path: Path, holes: Holes) -> None:
    audit = audited(tmp_path, model(2, 4))
    assert holes(audit) == [] and audit.n_errors == 0
