"""What the probe makes of operands as hooks report them, in whatever order and shape."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from fp8debug.formats import E4M3
from fp8debug.hooks.observed import Observed
from fp8debug.hooks.probe.gemms import GemmProbe
from fp8debug.hooks.recorder import Facts
from fp8debug.hooks.scales import InForce
from fp8debug.recipes import parse_recipe
from fp8debug.replay import Moment

FORWARD, BACKWARD = Moment(0, 0, 0, "forward"), Moment(0, 0, 0, "backward")
CURRENT = parse_recipe("current")
SCALES = [InForce(CURRENT, E4M3, False, np.float32(1))]


class Probed:
    """A probe, and what it says."""

    def __init__(self, memory_mb: int = 32) -> None:
        self.rows: list[tuple[str, str, int, str, Any]] = []
        self.notes: list[tuple[str, int]] = []
        self.probe = GemmProbe([CURRENT], ("exact",), memory_mb, self._add, lambda *note: self.notes.append(note))
        self._seq = 0

    def _add(self, layer: str, tensor: str, moment: Moment, seq: int, cells: Iterable[tuple[Any, ...]]) -> None:
        self.rows += [(layer, tensor, seq, c[0], c[6:10]) for c in cells]

    def see(self, layer: str, tensor: str, value: torch.Tensor, moment: Moment) -> None:
        self.probe.observe(Observed(layer, tensor, value, torch.float32, moment), Facts(self._seq, SCALES, 4.0, 0.1))
        self._seq += 1

    def forward(self, layer: str = "l", moment: Moment = FORWARD, n: int = 3, k: int = 4) -> None:
        self.see(layer, "x", torch.ones(2, 5, k), moment)
        self.see(layer, "w", torch.ones(n, k), moment)

    def backward(self, layer: str = "l", moment: Moment = BACKWARD, n: int = 3) -> None:
        self.see(layer, "dy", torch.ones(2, 5, n), moment)

    @property
    def gemms(self) -> list[str]:
        return [f"{layer}.{gemm}" for layer, _, _, gemm, _ in self.rows]


def test_one_use_of_a_layer() -> None:
    """fprop stands under the record of x, the other two under that of dy."""
    probed = Probed()
    probed.forward()
    probed.backward()
    assert probed.rows == [
        ("l", "x", 0, "fprop", ("rows 0:10 of 10, columns 0:3 of 3", 10, 3, 4)),
        ("l", "dy", 2, "dgrad", ("rows 0:10 of 10, columns 0:4 of 4", 10, 4, 3)),
        ("l", "dy", 2, "wgrad", ("rows 0:3 of 3, columns 0:4 of 4", 3, 4, 10)),
    ]


def test_only_the_first_use_of_the_first_microbatch() -> None:
    probed = Probed()
    probed.forward()
    for moment in (Moment(0, 0, 1, "forward"), Moment(0, 1, 0, "forward"), Moment(0, 0, 0, "recompute"),
                   Moment(0, 0, 0, "eval")):  # fmt: skip
        probed.forward(moment=moment)
    for moment in (Moment(0, 0, 1, "backward"), Moment(0, 1, 0, "backward")):
        probed.backward(moment=moment)
    assert probed.gemms == ["l.fprop"]
    for _ in range(2):  # the second time as with retain_graph
        probed.backward()
    assert probed.gemms == ["l.fprop", "l.dgrad", "l.wgrad"]


def test_layers_interleave() -> None:
    probed = Probed()
    for layer in "abc":
        probed.forward(layer)
    for layer in "cab":
        probed.backward(layer)
    assert probed.gemms == ["a.fprop", "b.fprop", "c.fprop", *(f"{x}.{g}" for x in "cab" for g in ("dgrad", "wgrad"))]


def test_operands_that_do_not_belong_together() -> None:
    probed = Probed()
    probed.see("a", "x", torch.ones(2, 4), FORWARD)
    probed.see("b", "w", torch.ones(3, 4), FORWARD)
    probed.see("c", "x", torch.ones(2, 4), FORWARD)
    probed.see("c", "w", torch.ones(3, 5), FORWARD)
    probed.backward("c")
    probed.forward("d")
    probed.backward("d", n=7)
    probed.backward("e")
    assert probed.gemms == ["d.fprop"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_operands_of_no_use(dtype: torch.dtype) -> None:
    probed = Probed()
    probed.see("l", "x", torch.ones(2, 4).to(dtype), FORWARD)
    probed.see("l", "w", torch.ones(3, 4), FORWARD)
    probed.see("l", "dy", torch.ones(2, 3), BACKWARD)
    assert probed.rows == []


def test_a_vector_and_strided_operands() -> None:
    probed = Probed()
    probed.see("v", "x", torch.ones(4), FORWARD)
    probed.see("v", "w", torch.ones(3, 4), FORWARD)
    probed.see("v", "dy", torch.ones(()).expand(3), BACKWARD)
    probed.see("t", "x", torch.ones(4, 5, 2).permute(1, 2, 0), FORWARD)
    probed.see("t", "w", torch.ones(4, 3).t(), FORWARD)
    probed.see("t", "dy", torch.ones(()).expand(5, 2, 3), BACKWARD)
    assert [(layer, gemm, cells[1:]) for layer, _, _, gemm, cells in probed.rows] == [
        *(("v", "fprop", (1, 3, 4)), ("v", "dgrad", (1, 4, 3)), ("v", "wgrad", (3, 4, 1))),
        *(("t", "fprop", (10, 3, 4)), ("t", "dgrad", (10, 4, 3)), ("t", "wgrad", (3, 4, 10))),
    ]


def test_nothing_is_kept_alive() -> None:
    """Neither what was reported nor, after the step, any copy of it: a frozen layer never has a dy."""
    probed = Probed()
    x, w = torch.ones(64, 40), torch.ones(50, 40)
    alive = [weakref.ref(t.untyped_storage()) for t in (x, w)]
    probed.see("frozen", "x", x, FORWARD)
    probed.see("frozen", "w", w, FORWARD)
    del x, w
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    copies = [weakref.ref(operand.sample) for operand in probed.probe._kept["frozen"][:2]]
    assert probed.probe._latest is None
    probed.probe.end_step(0)
    gc.collect()
    assert [reference() for reference in copies] == [None, None]
    probed.see("half", "x", torch.ones(2, 2), FORWARD)
    probed.probe.drop()
    assert probed.probe._latest is None


def test_layers_take_turns() -> None:
    """1 MB holds two layers of 2,048 by 2,048 tokens in FP32: said once, and each has its gradients probed."""
    probed = Probed(memory_mb=1)
    x, w, dy = torch.ones(2048, 2048), torch.ones(2048, 2048), torch.ones(2048, 2048)
    turns = []
    for step in range(3):
        probed.rows.clear()
        for layer in "abc":
            probed.see(layer, "x", x, Moment(step, 0, 0, "forward"))
            probed.see(layer, "w", w, Moment(step, 0, 0, "forward"))
        held = sum(k.x.n_bytes + k.w.n_bytes for k in probed.probe._kept.values())
        assert held <= 1 << 20
        for layer in "cba":
            probed.see(layer, "dy", dy, Moment(step, 0, 0, "backward"))
        probed.probe.end_step(step)
        assert probed.gemms[:3] == ["a.fprop", "b.fprop", "c.fprop"], "which keeps nothing"
        turns.append("".join(layer[0] for layer in probed.gemms[3::2]))
    assert turns == ["ba", "ca", "cb"]
    text = (
        "samples of 3 layers need 1.5 MB from forward to backward, probe_memory is 1 MB: "
        "dgrad and wgrad are probed for 2 layers a sampled step, in turn"
    )
    assert probed.notes == [(text, 0)]


def test_no_memory_at_all() -> None:
    probed = Probed(memory_mb=0)
    for step in range(2):
        probed.forward()
        probed.backward()
        probed.probe.end_step(step)
    assert probed.gemms == ["l.fprop"] * 2
    assert [text.rpartition("probed for ")[2] for text, _ in probed.notes] == ["no layer"]


def test_recomputation_that_runs_backwards() -> None:
    """Used twice, and recomputed where no graph was: the first dy may be of the second use."""
    x, other = torch.arange(8.0).reshape(2, 4), torch.ones(2, 4)
    again = Moment(0, 0, 0, "recompute")
    for recomputed, gemms in ((x, ["l.fprop", "l.dgrad", "l.wgrad"]), (other, ["l.fprop"])):
        probed = Probed()
        with torch.no_grad():
            probed.see("l", "x", x, FORWARD)
            probed.see("l", "w", torch.ones(3, 4), FORWARD)
            probed.see("l", "x", other, FORWARD._replace(call=1))
        probed.see("l", "x", recomputed, again)
        probed.see("l", "dy", torch.ones(2, 3), BACKWARD)
        assert probed.gemms == gemms
