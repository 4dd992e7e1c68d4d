"""C41: padded rows hold NaN, which a kernel that reads whole tiles spreads into valid ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint

NAN = 0x7F


def audited(
    folder: Path, *, is_quantised: bool, valid_row: int | None = None, valid_rows: int | None = None, experts: int = 0
) -> Audit:
    """96 rows of which 64 are valid; one NaN in `valid_row`, if any. With experts, a stack of such matrices."""
    random = torch.Generator().manual_seed(41)
    weight = torch.randn(max(experts, 1), 96, 64, generator=random) * 0.03
    scale = weight.abs().amax() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn).view(torch.uint8)
    for tensor, nan in ((weight, math.nan), (codes, NAN)):
        tensor[:, 64:] = nan
        if valid_row is not None:
            tensor[0, valid_row, 5] = nan
    kept = codes.view(torch.float8_e4m3fn) if is_quantised else weight.bfloat16()
    tensors = {"experts.w1.weight": kept if experts else kept[0]}
    if is_quantised:
        tensors["experts.w1.weight_scale"] = scale
    save_file(tensors, folder / "model.safetensors")
    return audit_checkpoint(folder / "model.safetensors", valid_rows=valid_rows)


def told(audit: Audit) -> list[tuple[str, str]]:
    return [(one.severity, one.check) for one in audit.findings if one.severity in ("error", "warning")]


@pytest.mark.parametrize("is_quantised", [False, True])
@pytest.mark.parametrize("valid_rows", [None, 64])
def test_padding_is_a_warning(is_quantised: bool, valid_rows: int | None, tmp_path: Path) -> None:
    audit = audited(tmp_path, is_quantised=is_quantised, valid_rows=valid_rows)
    assert told(audit) == [("warning", "padding_nonfinite")]
    message = audit.findings[0].message
    assert "32 padded rows non-finite (rows 64-95); all rows before 64 are finite" in message


@pytest.mark.parametrize("is_quantised", [False, True])
@pytest.mark.parametrize("valid_rows", [None, 64])
@pytest.mark.parametrize("row", [63, 10])
def test_a_valid_row_is_an_error(is_quantised: bool, valid_rows: int | None, row: int, tmp_path: Path) -> None:
    audit = audited(tmp_path, is_quantised=is_quantised, valid_rows=valid_rows, valid_row=row)
    check = "code_nan" if is_quantised else "nonfinite"
    assert told(audit) == [("error", check), ("warning", "padding_nonfinite")]
    assert f"in row {row} and in the 32 padded rows from 64 on" in audit.findings[0].message


def test_rows_are_padded_in_each_matrix_of_a_stack(tmp_path: Path) -> None:
    audit = audited(tmp_path, is_quantised=False, experts=3)
    assert told(audit) == [("warning", "padding_nonfinite")]
    assert "96 padded rows non-finite (rows 64-95 of a matrix)" in audit.findings[0].message


def test_with_fewer_valid_rows_than_thought_the_rest_is_an_error(tmp_path: Path) -> None:
    audit = audited(tmp_path, is_quantised=False, valid_rows=80)
    assert told(audit) == [("error", "nonfinite"), ("warning", "padding_nonfinite")]
    assert "in 16 rows: 64-79" in audit.findings[0].message
