"""C31: a tensor-parallel shard that cuts a block of 128, which no reader can split a scale for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One projection for each size, cut in its lines or in its columns."""
    tensors = {}
    for layer, size in enumerate((3072, 18432, 7168, 2048)):
        for role, shape in (("gate_proj", (size, 128)), ("down_proj", (128, size))):
            name = f"model.layers.{layer}.mlp.{role}.weight"
            tensors[name] = torch.ones(shape).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = torch.full((-(-shape[0] // 128), -(-shape[1] // 128)), 0.01)
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def cut(audit: Audit) -> dict[tuple[int, int], int]:
    """Lines or columns of a shard, by size and ranks, where a block is cut."""
    found = [place.numbers for one in audit.findings if one.check == "shard_cuts_block" for place in one.places]
    assert len(found) == 2 * len({(each["size"], each["tp"]) for each in found})  # lines and columns alike
    return {(int(each["size"] or 0), int(each["tp"] or 0)): int(each["shard"] or 0) for each in found}


def test_which_sizes_and_ranks_cut_a_block(checkpoint: Path) -> None:
    audit = audit_checkpoint(checkpoint, tp=(8, 16, 32), headers_only=True)
    assert cut(audit) == {
        (3072, 16): 192, (3072, 32): 96, (18432, 32): 576, (7168, 16): 448, (7168, 32): 224, (2048, 32): 64,
    }  # fmt: skip
    assert audit.n_errors == 0
    (finding,) = (one for one in audit.findings if one.check == "shard_cuts_block")
    (place,) = (one for one in finding.places if (one.numbers["shard"], one.numbers["axis"]) == (192, "lines"))
    assert "shard 0 has blocks 0-1, shard 1 has blocks 1-2, shard 2 has blocks 3-4, shard 3 has blocks 4-5" in (
        place.message
    )


def test_it_is_an_error_for_a_consumer_that_stops(checkpoint: Path) -> None:
    assert audit_checkpoint(checkpoint, tp=(16,), consumer="vllm", headers_only=True).n_errors == 1
    assert audit_checkpoint(checkpoint, tp=(8,), consumer="vllm", headers_only=True).n_errors == 0
