"""Checkpoints of Transformer Engine: FP8 parameters, and the scales of delayed scaling in extra states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint import audit_checkpoint

Written = Callable[..., Path]
Tensors = dict[str, tuple[str, npt.NDArray[Any]]]
LAYERS = [
    f"decoder.layers.{layer}.{part}" for layer in range(4) for part in ("self_attention.linear_qkv", "mlp.linear_fc1")
]


def delayed(*, is_fp8: bool = True, with_inverse: bool = True) -> Tensors:
    """Parameters with extra states as the stores show them; scale is 448 / amax, a value is code * scale_inv."""
    generator = np.random.default_rng(4)
    tensors: Tensors = {}
    for layer in LAYERS:
        w = generator.normal(0, 0.02, (64, 128)).astype(np.float32)
        scale = np.float32(448) / np.abs(w).max()
        forward, backward = np.array([12, scale, 1], np.float32), np.array([57344, 1], np.float32)
        if is_fp8:
            tensors[f"{layer}.weight"] = ("F8_E4M3", w * scale)
            tensors[f"{layer}.weight#scale_inv"] = ("F32", np.array([1 / scale], np.float32))
        else:
            tensors[f"{layer}.weight"] = ("BF16", w)
        tensors[f"{layer}._extra_state#scale_fwd"] = ("F32", forward)
        tensors[f"{layer}._extra_state#amax_history_fwd"] = ("F32", np.zeros((16, 3), np.float32))
        tensors[f"{layer}._extra_state#scale_bwd"] = ("F32", backward)
        if with_inverse:
            tensors[f"{layer}._extra_state#scale_inv_fwd"] = ("F32", np.float32(1) / forward)
            tensors[f"{layer}._extra_state#scale_inv_bwd"] = ("F32", np.float32(1) / backward)
    return tensors


def found(path: Path) -> Mapping[str, tuple[str, ...]]:
    """Places by check."""
    audit = audit_checkpoint(path)
    assert audit.convention.dialect == "te"
    assert not audit.convention.unknown
    return {finding.check: tuple(place.tensor for place in finding.places) for finding in audit.findings}


def test_healthy_ones_say_nothing(written: Written) -> None:
    for at, tensors in enumerate(
        (delayed(), delayed(is_fp8=False), delayed(with_inverse=False), delayed(is_fp8=False, with_inverse=False))
    ):
        assert found(written(tensors, folder=f"healthy-{at}")) == {}


def test_states_of_stacked_layers_are_numbered(written: Written) -> None:
    """Megatron-LM stacks the layers of a model, and numbers their states behind the name."""
    state = delayed(is_fp8=False)
    tensors: Tensors = {"decoder.layers.mlp.linear_fc1.weight": ("BF16", np.ones((4, 64, 128), np.float32))}
    for layer in range(4):
        for name, value in state.items():
            head, _, tail = name.partition("._extra_state#")
            if head == f"decoder.layers.{layer}.mlp.linear_fc1" and tail:
                tensors[f"decoder.layers.mlp.linear_fc1._extra_state/shard_{layer}_4#{tail}"] = value
    assert found(written(tensors, folder="healthy")) == {}
    wrong = "decoder.layers.mlp.linear_fc1._extra_state/shard_2_4#scale_inv_bwd"
    tensors[wrong] = ("F32", np.array([2, 1], np.float32))
    assert found(written(tensors, folder="wrong")) == {"reciprocal_wrong": (wrong,)}


def test_an_inverse_that_is_not_one_is_named(written: Written) -> None:
    tensors = delayed()
    name = f"{LAYERS[3]}._extra_state#scale_inv_fwd"
    tensors[name] = ("F32", tensors[f"{LAYERS[3]}._extra_state#scale_fwd"][1])
    assert found(written(tensors)) == {"reciprocal_wrong": (name,)}


def test_a_scale_in_the_place_of_its_inverse_is_named(written: Written) -> None:
    tensors = delayed()
    name = f"{LAYERS[5]}.weight#scale_inv"
    tensors[name] = ("F32", np.float32(1) / tensors[name][1])
    places = {tensor for tensors in found(written(tensors)).values() for tensor in tensors}
    assert places and all(tensor.startswith(f"{LAYERS[5]}.weight") for tensor in places)


def test_blocks_are_told_by_the_shapes_of_scales(written: Written) -> None:
    codes = np.random.default_rng(1).integers(0, 0x7E, (256, 384)).astype(np.uint8)
    shapes = {
        "square": ("F32", (2, 3), (128, 128)),
        "row": ("F32", (256, 3), (1, 128)),
        "mx": ("F8_E8M0", (256, 12), (1, 32)),
    }
    for name, (dtype, shape, block) in shapes.items():
        scale = np.full(shape, 2.0**-9, np.float32)
        path = written({f"{name}.weight": ("F8_E4M3", codes), f"{name}.weight#scale_inv": (dtype, scale)}, folder=name)
        (one,) = audit_checkpoint(path).convention.quantised
        assert one.grid_scale is not None and one.grid_scale.block == block
        assert one.grid_scale.encoding == ("E8M0" if dtype == "F8_E8M0" else "F32")
