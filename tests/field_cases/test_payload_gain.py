"""What a GEMM read is off by one factor: which mistake makes that factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.analysis.diagnosis import Finding, diagnose
from fp8debug.formats import E4M3, E4M3FNUZ, Format
from fp8debug.hooks.observed import Payload

if TYPE_CHECKING:
    from fp8debug.analysis import Run
    from tests.field_cases.conftest import Normal, Opened, Replay

Codes = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""From a weight and its right scale to codes and the factor that they are read with."""


def quantized(scaled: torch.Tensor) -> torch.Tensor:
    return scaled.clamp(-448, 448).to(torch.float8_e4m3fn)


def power_of_two(scale: torch.Tensor) -> torch.Tensor:
    return torch.exp2(torch.floor(torch.log2(scale)))


MISTAKES: dict[str, tuple[Codes, Callable[[float], float]]] = {
    "the inverse of the scale is applied twice when the codes are read": (
        lambda w, s: (quantized(w * s), 1 / s**2), lambda s: 1 / s),
    "the codes are multiplied with the scale in the place of its inverse": (
        lambda w, s: (quantized(w * s), s), lambda s: s**2),
    "the codes are read without their scale": (
        lambda w, s: (quantized(w * s), torch.ones(())), lambda s: s),
    "the codes were made without the scale that they are read with": (
        lambda w, s: (quantized(w), 1 / s), lambda s: 1 / s),
    "made with a scale for E4M3FNUZ (largest value 240) and are read with one for E4M3 (largest value 448)": (
        lambda w, s: (quantized(w * s * 240 / 448), 1 / s), lambda s: 240 / 448),
    "made with a scale for E4M3 (largest value 448) and are read with one for E5M2 (largest value 57344)": (
        lambda w, s: (quantized(w * s), 1 / (s * 128)), lambda s: 1 / 128),
    "the codes are read with the scale rounded to a power of two": (
        lambda w, s: (quantized(w * s), 1 / power_of_two(s)), lambda s: s / 2 ** math.floor(math.log2(s))),
}  # fmt: skip


def finding(run: Run) -> Finding:
    (found,) = (one for one in diagnose(run) if one.rule == "payload_gain")
    assert (found.severity, found.confidence) == ("error", "certain")
    return found


def test_the_factor_names_the_mistake(replay: Replay, opened: Opened, normal: Normal) -> None:
    w = normal(64, 64, std=0.5)
    scale = 448 / w.abs().amax()
    for number, (codes, _) in enumerate(MISTAKES.values()):
        held, scale_inv = codes(w, scale)
        for step in range(2):
            replay.observe("w", w, step=step, layer=str(number), payload=Payload(held, E4M3, scale_inv, "current"))
    replay.session.close()
    found = {one.worst.layer: one for one in diagnose(opened()) if one.rule == "payload_gain"}
    assert len(found) == len(MISTAKES)
    for number, (words, (_, gain)) in enumerate(MISTAKES.items()):
        one = found[str(number)]
        assert words in one.message
        assert (one.severity, one.confidence) == ("error", "certain")
        shown = {entry.title: float(entry.value) for entry in one.evidence}
        assert shown["gain of what the GEMM read"] == pytest.approx(gain(float(scale)), rel=0.01)
        assert shown["SQNR without that factor, dB"] > 24


@pytest.mark.parametrize(("fmt", "factor"), [(E4M3FNUZ, 0.5), (E4M3, 2.0)])
def test_bytes_of_the_other_e4m3(replay: Replay, opened: Opened, normal: Normal, fmt: Format, factor: float) -> None:
    w = normal(64, 64)
    dtype, other = torch.float8_e4m3fn, torch.float8_e4m3fnuz
    if factor == 2:
        dtype, other = other, dtype
    scale = 0.9 * torch.finfo(dtype).max / w.abs().amax()  # the largest code would be a NaN
    codes = (w * scale).to(dtype).view(torch.uint8)
    codes[codes == 0x80] = 0
    for layer in ("a", "b"):
        replay.observe("w", w, layer=layer, payload=Payload(codes.view(other), fmt, 1 / scale, "current"))
    replay.session.close()
    found = finding(opened())
    assert f"is {factor - 0.001:g} times the tensor" in found.message or f"is {factor:g} times" in found.message
    assert "written in one of them and are read in the other" in found.message
    assert "E4M3FNUZ" in found.message
    assert found.layers == ("a", "b")  # one cause


def test_scales_of_others(replay: Replay, opened: Opened, normal: Normal) -> None:
    """The scale of the layer's other operand; that of two steps before."""
    held: list[torch.Tensor] = []
    for step in range(6):
        w, x = normal(64, 64, std=0.02, seed=step), normal(64, 64, std=3.7, seed=9 + step)
        inverse = {"x": x.abs().amax() / 448, "w": w.abs().amax() / 448}
        x_payload = Payload(quantized(x / inverse["x"]), E4M3, inverse["x"], "current")
        replay.observe("x", x, step=step, layer="a", payload=x_payload)
        replay.observe(
            "w", w, step=step, layer="a", payload=Payload(quantized(w / inverse["w"]), E4M3, inverse["x"], "current")
        )
        grown = w * 1.45**step
        held.append(grown.abs().amax() / 448)
        read_with = held[max(0, step - 2)]
        codes = quantized(grown / held[step])
        replay.observe("w", grown, step=step, layer="b", payload=Payload(codes, E4M3, read_with, "current"))
    replay.session.close()
    messages = {found.worst.layer: found.message for found in diagnose(opened()) if found.rule == "payload_gain"}
    assert "the codes are read with the scale of x" in messages["a"]
    assert "the codes are read with the scale of 2 steps earlier" in messages["b"]


def test_codes_of_something_else(replay: Replay, opened: Opened, normal: Normal) -> None:
    """Of another tensor, and pieces of two ranks that are read with the scale of one."""
    w, other = normal(64, 64), normal(64, 64, seed=1)
    inverse = w.abs().amax() / 448
    replay.observe("w", w, layer="a", payload=Payload(quantized(other / inverse), E4M3, inverse, "current"))
    parts = torch.cat([w[:32] / inverse, w[32:] / inverse / 4])
    replay.observe("w", w, layer="b", payload=Payload(quantized(parts), E4M3, inverse, "current"))
    replay.session.close()
    messages = {one.worst.layer: one.message for one in diagnose(opened()) if one.rule == "payload_gain"}
    assert "the codes are no multiple of the tensor" in messages["a"]
    assert "no single factor explains that: a part of it is read with another scale" in messages["b"]
