"""C29: the last block of lines is a part of one: the block size is what the configuration says, not a quotient."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import audit_checkpoint
from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.values import Dequantiser

BLOCK = 128


def saved(folder: Path, rows: int, config: dict[str, object] | None) -> Path:
    """Codes of 1 everywhere; of the scales each is its number, so that values say which one was applied."""
    n = -(-rows // BLOCK)
    ones = torch.ones(rows, BLOCK).to(torch.float8_e4m3fn)
    scale = torch.arange(1, n + 1, dtype=torch.float32).view(n, 1)
    save_file({"a.weight": ones, "a.weight_scale_inv": scale}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


@pytest.mark.parametrize(
    ("rows", "last", "naive_wrong"), [(1000, 104, 84), (576, 64, 120), (587, 75, 100), (704, 64, 150)]
)
@pytest.mark.parametrize("config", [{"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}, None])
def test_no_line_gets_the_scale_of_another_block(
    rows: int, last: int, naive_wrong: int, config: dict[str, object] | None, tmp_path: Path
) -> None:
    with open_store(saved(tmp_path, rows, config)) as store:
        convention = read_convention(store)
        values = np.concatenate([part for _, part in Dequantiser(store, convention.quantised[0]).bands()])
    right = np.arange(rows) // BLOCK + 1
    assert (values == right[:, None]).all()
    assert int((right == right[-1]).sum()) == last
    n = int(right[-1])
    naive = -(-rows // n)
    assert int((np.arange(rows) // naive + 1 != right).sum()) == naive_wrong
    said = [note.message for note in convention.assumptions]
    if config is None:
        assert len(said) == 1 and "no configuration states the block size; 128 x 128 taken" in said[0]
    else:
        assert said == [] and convention.block == (BLOCK, BLOCK)


def test_a_grid_that_goes_with_no_block_size_is_an_error_and_not_made_to_fit(tmp_path: Path) -> None:
    ones = torch.ones(1000, BLOCK).to(torch.float8_e4m3fn)
    save_file({"a.weight": ones, "a.weight_scale_inv": torch.ones(9, 1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps({"quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}})
    )
    audit = audit_checkpoint(tmp_path)
    (misfit,) = audit.convention.misfits
    assert (misfit.scale, misfit.shape, misfit.expected) == ("a.weight_scale_inv", (9, 1), ((8, 1),))
    assert audit.n_errors and any(finding.check == "scale_misfit" for finding in audit.findings)
