"""Codes and scales out of quantised tensors of every layout, against the values that they stand for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp8debug.formats import E2M1, E4M3, E5M2, Format, decode
from fp8debug.hooks.backends.transformer_engine.payloads import UnknownLayout, is_quantized, payload_of
from fp8debug.hooks.observed import Payload

E4M3_TAG = SimpleNamespace(name="kFloat8E4M3")


def values(payload: Payload) -> torch.Tensor:
    """What the GEMM multiplied."""
    if payload.codes.dtype is not torch.uint8:
        return payload.codes.float() * torch.as_tensor(payload.scale_inv)
    elements = torch.from_numpy(decode(payload.codes.numpy(), payload.fmt))
    return elements * torch.as_tensor(payload.scale_inv)


def codes(*shape: int, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    """FP8 bytes of all kinds but NaN."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).mul(20).to(dtype).view(torch.uint8)


@pytest.mark.parametrize("fmt, dtype", [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)])
def test_one_scale_a_tensor(fmt: Format, dtype: torch.dtype) -> None:
    """The bytes are the codes; the transposed copy alone gives the same operand."""
    data = codes(2, 3, 4, dtype=dtype)
    tag = SimpleNamespace(name=f"kFloat8{fmt.name}")
    tensor = SimpleNamespace(_data=data, _transpose=None, _scale_inv=torch.tensor([0.25]), _fp8_dtype=tag)
    payload = payload_of(tensor, "delayed")
    assert (payload.fmt, payload.recipe, payload.codes.dtype) == (fmt, "delayed", dtype)
    assert values(payload).equal(data.view(dtype).float() * 0.25)
    turned = SimpleNamespace(**vars(tensor) | {"_data": None, "_transpose": data.movedim(-1, 0).contiguous()})
    assert payload_of(turned).codes.float().equal(payload.codes.float())


def test_blocks_of_128() -> None:
    """One scale for 128 of a row (stored transposed, rows padded to 4), or for 128 x 128 (columns padded to 4)."""
    data = codes(130, 200)
    plain = data.view(torch.float8_e4m3fn).float()
    common: dict[str, Any] = {"_fp8_dtype": E4M3_TAG, "_columnwise_data": None, "_columnwise_scale_inv": None}
    row, column = torch.arange(130)[:, None], torch.arange(200)[None]
    scales = torch.rand(2, 132) + 0.5
    rows = SimpleNamespace(_rowwise_data=data, _rowwise_scale_inv=scales, _is_2D_scaled=False, **common)
    assert values(payload_of(rows)).equal(plain * scales[column // 128, row])

    scales = torch.rand(2, 4) + 0.5
    tiles = SimpleNamespace(_rowwise_data=data, _rowwise_scale_inv=scales, _is_2D_scaled=True, **common)
    assert values(payload_of(tiles)).equal(plain * scales[row // 128, column // 128])

    columns = SimpleNamespace(
        **vars(rows)
        | {"_rowwise_data": None, "_rowwise_scale_inv": None, "_columnwise_data": data}
        | {"_columnwise_scale_inv": torch.ones(2, 132)}
    )
    assert values(payload_of(columns)).equal(plain.t()), "stored as the transposed operand"


def test_mxfp8() -> None:
    """E8M0 bytes are exponents: 127 is 1, 0 is 2^-127, 255 is NaN; padding is cut off."""
    data = codes(3, 2, 64)
    scales = torch.full((128, 4), 200, dtype=torch.uint8)
    scales[:6, :2] = torch.tensor([[127, 128], [126, 127], [0, 254], [255, 127], [127, 127], [130, 120]])
    tensor = SimpleNamespace(_rowwise_data=data, _rowwise_scale_inv=scales, _columnwise_data=None, _fp8_dtype=E4M3_TAG)
    payload = payload_of(tensor)
    factors = torch.tensor([[1, 2], [0.5, 1], [2.0**-127, 2.0**127], [torch.nan, 1], [1, 1], [8, 2.0**-7]])
    assert isinstance(payload.scale_inv, torch.Tensor)
    assert payload.scale_inv.shape == (3, 2, 64)
    seen = payload.scale_inv.reshape(6, 2, 32)
    assert torch.allclose(seen, factors[..., None].expand(6, 2, 32), rtol=0, atol=0, equal_nan=True)
    assert payload.recipe == "mxfp8"

    tall = SimpleNamespace(
        _rowwise_data=None, _columnwise_data=codes(64, 3), _columnwise_scale_inv=scales, _fp8_dtype=E4M3_TAG
    )
    column = torch.as_tensor(payload_of(tall).scale_inv)[:, 0]
    assert column.equal(torch.tensor([1.0] * 32 + [0.5] * 32)), "32 rows share a scale"


def test_nvfp4() -> None:
    """Two codes a byte, the earlier in the low half; E4M3 scales for 16, and one factor for all, or for each row."""
    packed = torch.tensor([[0x21, 0x43] + [0x00] * 6 + [0x97] + [0x00] * 7] * 2, dtype=torch.uint8)
    scales = torch.zeros(128, 4).to(torch.float8_e4m3fn)
    scales[:2, :2] = torch.tensor([[448, 2], [1, 0.5]]).to(torch.float8_e4m3fn)
    tensor = SimpleNamespace(
        _rowwise_data=packed,
        _rowwise_scale_inv=scales.view(torch.uint8),
        _amax_rowwise=torch.tensor([5376.0]),
        _fp4_dtype=SimpleNamespace(name="kFloat4E2M1"),
    )
    payload = payload_of(tensor)
    assert (payload.fmt, payload.recipe, payload.codes.shape) == (E2M1, "nvfp4", (2, 32))
    assert payload.codes[0, :4].tolist() == [1, 2, 3, 4]
    assert values(payload)[0, [0, 1, 2, 3, 16, 17]].tolist() == [448, 896, 1344, 1792, 6 * 4, -0.5 * 4]
    tensor._amax_rowwise = torch.tensor([2688.0, 5376.0])
    assert values(payload_of(tensor))[:, 0].tolist() == [224, 1]


def test_wrappers_and_what_is_not_known() -> None:
    """A wrapper gives its row-wise tensor; a layout that is not known is refused by name, whatever it lacks."""
    inner = SimpleNamespace(_data=codes(2, 2), _scale_inv=torch.ones(1), _fp8_dtype=E4M3_TAG)
    for name in ("rowwise_gemm_tensor", "_rowwise_storage"):
        wrapper = SimpleNamespace(**{name: inner})
        assert is_quantized(wrapper)
        assert values(payload_of(wrapper)).equal(values(payload_of(inner)))
    swizzled = SimpleNamespace(
        _rowwise_data=codes(2, 32),
        _rowwise_scale_inv=torch.ones(128, 4, dtype=torch.uint8),
        _fp8_dtype=E4M3_TAG,
        _with_gemm_swizzled_scales=True,
    )
    strange = SimpleNamespace(_data=codes(2, 2), _scale_inv=torch.ones(1), _fp8_dtype="kFloat7")
    small = SimpleNamespace(
        _rowwise_data=codes(300, 32), _rowwise_scale_inv=torch.ones(128, 4, dtype=torch.uint8), _fp8_dtype=E4M3_TAG
    )
    rotated = SimpleNamespace(_fp4_dtype=E4M3_TAG, _rowwise_data=None)
    for unknown in (swizzled, strange, small, rotated, SimpleNamespace(_fp8_dtype=None), torch.ones(2)):
        with pytest.raises(UnknownLayout):
            payload_of(unknown)
    assert not is_quantized(torch.ones(2))
    assert not is_quantized(None)
