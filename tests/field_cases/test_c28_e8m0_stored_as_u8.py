"""C28: scales of E8M0 that are stored as U8: a byte b is 2^(b - 127), not b."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint
from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.values import Dequantiser
from fp8debug.errors import UsageError

NAME = "model.layers.0.mlp.experts.0.w1.weight"


def quantised() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight, its codes, and the exponents of 32 columns each, rounded up."""
    w = 0.03 * torch.randn(64, 128, generator=torch.Generator().manual_seed(28))
    exponents = torch.ceil(torch.log2(w.view(64, 4, 32).abs().amax(-1).double() / 448))
    codes = (w.view(64, 4, 32) / torch.exp2(exponents)[..., None]).float().to(torch.float8_e4m3fn)
    return w, codes.view(64, 128), (exponents + 127).to(torch.uint8)


def saved(folder: Path, codes: torch.Tensor, scale: torch.Tensor) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({NAME: codes, f"{NAME}_scale_inv": scale}, folder / "model.safetensors")
    return folder


def sqnr_db(w: torch.Tensor, got: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> float:
    x = w.double().numpy()
    return float(10 * np.log10((x**2).sum() / ((x - got) ** 2).sum()))


def test_bytes_are_exponents_and_that_is_said(tmp_path: Path) -> None:
    w, codes, scale = quantised()
    assert set(scale.unique().tolist()) <= {113, 114, 115, 116}
    with open_store(saved(tmp_path, codes, scale)) as store:
        convention = read_convention(store)
        (one,) = convention.quantised
        got = np.concatenate([values for _, values in Dequantiser(store, one).bands()])
    assert (one.scales[0].encoding, one.scales[0].block, one.scales[0].divides) == ("E8M0", (1, 32), False)
    assert [note.message for note in convention.assumptions if "U8 taken as E8M0" in note.message]
    assert sqnr_db(w, got) == pytest.approx(31.4, abs=0.3)
    # What was seen: bytes taken as integers, 450,000 times too large, with a cosine that tells little.
    raw = codes.float().numpy() * np.repeat(scale.float().numpy(), 32, axis=1)
    x = w.numpy()
    assert (x * raw).sum() / (x * x).sum() == pytest.approx(5e5, rel=0.2)
    assert (x * raw).sum() / np.sqrt((x * x).sum() * (raw * raw).sum()) == pytest.approx(0.97, abs=0.02)


def test_the_ends_of_the_range(tmp_path: Path) -> None:
    """255 is NaN and is a finding; 0 is 2^-127, a number like others."""
    _, codes, scale = quantised()
    scale[3, 1], scale[5, 0] = 255, 0
    audit: Audit = audit_checkpoint(saved(tmp_path, codes, scale))
    facts = audit.facts.scales[f"{NAME}_scale_inv"]
    assert (facts.n_nan, facts.n_zero, facts.smallest) == (1, 0, 2.0**-127)
    assert audit.n_errors and any(f"{NAME}_scale_inv" in str(finding.places) for finding in audit.findings)


def test_any_other_u8_is_refused(tmp_path: Path) -> None:
    _, codes, _ = quantised()
    with pytest.raises(UsageError, match="stored as U8, and nothing says what its bytes mean"):
        audit_checkpoint(saved(tmp_path, codes, torch.full((1, 1), 115, dtype=torch.uint8)))
    with pytest.raises(UsageError, match="stored as U8"):
        audit_checkpoint(saved(tmp_path, codes, torch.full((64,), 115, dtype=torch.uint8)))
