"""Against `torch._scaled_mm`: its operands are ours to the bit, its result ours up to the order of an FP32 sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fp8debug
from fp8debug.gemms import GEMMS

DTYPES = {"x": torch.float8_e4m3fn, "w": torch.float8_e4m3fn, "dy": torch.float8_e5m2}
TOKENS, K, N = 48, 96, 32


def cast(t: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes and scale, in torch's own operations."""
    largest = torch.finfo(dtype).max
    scale = torch.div(torch.tensor(largest), t.abs().amax().float())
    return (t.float() * scale).clamp(-largest, largest).to(dtype), scale


@pytest.mark.parametrize("gemm", GEMMS)
def test_operands_and_result(gemm: str) -> None:
    torch.manual_seed(len(gemm))
    layer = nn.Linear(K, N, bias=False)
    x = (torch.randn(TOKENS, K) * torch.randn(K).exp()).requires_grad_()
    gradient = torch.randn(TOKENS, N) * 1e-6
    with fp8debug.emulate(layer, "current", quiet=True):
        y = layer(x)
        y.backward(gradient)
    assert x.grad is not None and layer.weight.grad is not None
    result = {"fprop": y.detach(), "dgrad": x.grad, "wgrad": layer.weight.grad}[gemm]
    values = {"x": x.detach(), "w": layer.weight.detach(), "dy": gradient}

    (a, scale_a), (b, scale_b) = (
        cast(values[tensor] if way == "row" else values[tensor].T.contiguous(), DTYPES[tensor])
        for tensor, way in GEMMS[gemm]
    )
    theirs = torch._scaled_mm(
        a, b.T, scale_a=scale_a.reciprocal(), scale_b=scale_b.reciprocal(), out_dtype=torch.float32
    )
    # FP32 sums of `depth` products in any order, the two roundings of the scales beside them.
    depth = a.shape[1]
    exact_a, exact_b = (q.double() / s.double() for q, s in ((a, scale_a), (b, scale_b)))
    allowed = (depth + 4) * 2.0**-24 * (exact_a.abs() @ exact_b.abs().T)
    assert ((result.double() - theirs.double()).abs() <= 2 * allowed).all()
    assert ((result.double() - exact_a @ exact_b.T).abs() <= allowed).all()


@pytest.mark.parametrize("tensor", ["x", "w", "dy"])
def test_codes_and_scales(tensor: str) -> None:
    """Each operand alone, against the unit matrix: what the GEMM read, divided by nothing."""
    torch.manual_seed(1)
    value = (torch.randn(64, 64) * torch.randn(64).exp()).bfloat16()
    codes, scale = cast(value, DTYPES[tensor])
    layer = nn.Linear(64, 64, bias=False, dtype=torch.float32)
    unit = torch.eye(64)
    with torch.no_grad():
        layer.weight.copy_(value if tensor == "w" else unit)
    x = (value.float() if tensor == "x" else unit).clone().requires_grad_()
    with fp8debug.emulate(layer, "current", only=tensor, quiet=True):
        y = layer(x)
        y.backward(value.float() if tensor == "dy" else unit)
    assert x.grad is not None
    read = {"x": y.detach(), "w": y.detach().T, "dy": x.grad}[tensor]
    assert torch.equal(read, codes.float() / scale)
