"""A checkpoint that says it holds 50 GB: audited by its headers and scales, in little memory."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np

from fp8debug.analysis.checkpoint import audit_checkpoint

N, BLOCK = 12, 128
LINES, LENGTH = 32_768, 131_072


def _write_sparse(folder: Path) -> None:
    """E4M3 codes that were never written, so that the file takes little room, and their scales."""
    grid = np.full((LINES // BLOCK, LENGTH // BLOCK), 2e-4, np.float32)
    grid += np.arange(grid.size, dtype=np.float32).reshape(grid.shape) * 1e-10
    header: dict[str, object] = {}
    at = 0
    for dtype, suffix, shape, size in (
        ("F32", "_scale_inv", grid.shape, grid.nbytes),
        ("F8_E4M3", "", (LINES, LENGTH), LINES * LENGTH),
    ):
        for layer in range(N):
            place = {"dtype": dtype, "shape": shape, "data_offsets": [at, at := at + size]}
            header[f"model.layers.{layer}.mlp.down_proj.weight{suffix}"] = place
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + grid.tobytes() * N)
        file.truncate(8 + len(text) + at)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}}
    (folder / "config.json").write_text(json.dumps(config))


def test_fifty_gigabytes_are_audited_by_their_headers(tmp_path: Path) -> None:
    _write_sparse(tmp_path)
    tracemalloc.start()
    audit = audit_checkpoint(tmp_path, headers_only=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert audit.n_bytes == N * LINES * LENGTH + N * (LINES // BLOCK) * (LENGTH // BLOCK) * 4 > 50e9
    assert len(audit.convention.quantised) == N == len(audit.facts.scales)
    assert [finding.check for finding in audit.findings if finding.severity in ("error", "warning")] == []
    assert audit.problems == ()
    assert peak < 60e6
