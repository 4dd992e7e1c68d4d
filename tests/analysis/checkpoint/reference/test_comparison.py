"""Checkpoints of one model under other names, fused, stacked, transposed; what is said about it, and what is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint import Audit, Comparison, audit_checkpoint
from fp8debug.errors import Fp8DebugError

Array = npt.NDArray[Any]
Written = Callable[..., Path]
CONFIG = {"config.json": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}}
L = "model.layers.0."
RNG = np.random.default_rng(11)


def weight(lines: int, length: int) -> Array:
    return (0.03 * RNG.standard_normal((lines, length))).astype(ml_dtypes.bfloat16).astype(np.float32)


MODEL: dict[str, Array] = {
    "model.embed_tokens.weight": weight(60, 128),
    f"{L}input_layernorm.weight": np.ones(128, np.float32),
    f"{L}self_attn.q_proj.weight": weight(160, 128),
    f"{L}self_attn.k_proj.weight": weight(64, 128),
    f"{L}self_attn.v_proj.weight": weight(64, 128),
    f"{L}self_attn.o_proj.weight": weight(128, 128),
    **{
        f"{L}mlp.experts.{expert}.{role}_proj.weight": weight(*shape)
        for expert in range(3)
        for role, shape in {"gate": (96, 128), "up": (96, 128), "down": (128, 96)}.items()
    },
    "lm_head.weight": weight(60, 128),
}


def quantised(name: str, x: Array, *, gain: float = 1.0) -> dict[str, tuple[str, Array]]:
    """Codes and a scale for every 128 x 128."""
    rows, columns = -(-x.shape[0] // 128), -(-x.shape[1] // 128)
    padded = np.zeros((rows * 128, columns * 128), np.float32)
    padded[: x.shape[0], : x.shape[1]] = x
    scale = np.abs(padded).reshape(rows, 128, columns, 128).max((1, 3)) / np.float32(448)
    spread = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: x.shape[0], : x.shape[1]]
    codes = (x / spread).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return {name: ("F8_E4M3", codes), f"{name}_scale_inv": ("F32", scale * np.float32(gain))}


def fp8(model: Mapping[str, Array]) -> dict[str, tuple[str, Array]]:
    tensors: dict[str, tuple[str, Array]] = {}
    for name, x in model.items():
        tensors |= quantised(name, x) if "proj" in name else {name: ("BF16", x)}
    return tensors


def plain(model: Mapping[str, Array]) -> dict[str, tuple[str, Array]]:
    return {name: ("BF16", x) for name, x in model.items()}


def fused(model: Mapping[str, Array]) -> dict[str, Array]:
    """q, k and v in one matrix; gate and up of all experts in one stack, down in another."""
    kept = {name: x for name, x in model.items() if "proj" not in name or "o_proj" in name}
    kept[f"{L}self_attn.qkv_proj.weight"] = np.concatenate([model[f"{L}self_attn.{p}_proj.weight"] for p in "qkv"])
    expert = {(e, p): model[f"{L}mlp.experts.{e}.{p}_proj.weight"] for e in range(3) for p in ("gate", "up", "down")}
    kept[f"{L}mlp.experts.gate_up_proj"] = np.stack(
        [np.concatenate([expert[e, "gate"], expert[e, "up"]]) for e in range(3)]
    )
    kept[f"{L}mlp.experts.down_proj"] = np.stack([expert[e, "down"] for e in range(3)])
    return kept


@pytest.fixture
def against(written: Written) -> Callable[..., tuple[Audit, Comparison]]:
    """`against(ours, theirs)`: the audit, and its comparison."""

    def run(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[Audit, Comparison]:
        quantised_ones = [any(name.endswith("scale_inv") for name in side) for side in (ours, theirs)]
        paths = [
            written(side, folder=folder, configs=CONFIG if is_quantised else None)
            for side, folder, is_quantised in zip((ours, theirs), ("ours", "theirs"), quantised_ones, strict=True)
        ]
        audit = audit_checkpoint(paths[0], [paths[1]])
        return audit, audit.comparisons[0]

    return run


Against = Callable[..., tuple[Audit, Comparison]]


def alarms(audit: Audit) -> list[str]:
    return [one.message for one in audit.findings if one.severity in ("error", "warning")]


def verdicts(comparison: Comparison) -> dict[str, int]:
    found = [tensor.verdict for tensor in comparison.tensors]
    return {verdict: found.count(verdict) for verdict in sorted(set(found))}


def test_a_clean_model_against_its_master(against: Against) -> None:
    audit, comparison = against(fp8(MODEL), plain(MODEL))
    assert verdicts(comparison) == {"faithful": 13, "identical": 3} and not alarms(audit)
    assert not comparison.missing and not comparison.extra
    (note,) = comparison.notes
    assert "amax / 448" in note and "alike in 7 more of 8 looked at" in note


def test_a_master_against_what_was_made_of_it(against: Against) -> None:
    audit, comparison = against(plain(MODEL), fp8(MODEL))
    assert verdicts(comparison) == {"faithful": 13, "identical": 3} and not alarms(audit)


@pytest.mark.parametrize(
    ("spelt", "n"),
    [
        (lambda name: f"module.{name}", 16),
        (lambda name: f"base_model.model.{name}", 16),
        (lambda name: name.replace("model.", "model.language_model.") if "lm_head" not in name else name, 15),
        (lambda name: name.replace(".0.", ".0._orig_mod."), 14),
        (lambda name: f"student.net.{name}", 16),
        (lambda name: name.removeprefix("model."), 15),
    ],
)
def test_wrapped_names_are_matched_and_that_is_said(spelt: Callable[[str], str], n: int, against: Against) -> None:
    audit, comparison = against(plain({spelt(name): x for name, x in MODEL.items()}), plain(MODEL))
    assert verdicts(comparison) == {"identical": 16} and not alarms(audit)
    (note,) = comparison.notes
    assert note.startswith(f"{n} tensors with another name in the reference: ")
    one, other = note.split(": ")[1].rstrip(".").split(" is ")
    assert one == spelt(other) and other in MODEL


def test_fused_and_stacked_parts_in_both_directions(against: Against) -> None:
    audit, comparison = against(fp8(MODEL), plain(fused(MODEL)))
    assert verdicts(comparison) == {"faithful": 13, "identical": 3} and not alarms(audit) and not comparison.extra
    names = {tensor.name: tensor.reference_name for tensor in comparison.tensors}
    assert names[f"{L}mlp.experts.2.up_proj.weight"] == f"{L}mlp.experts.gate_up_proj"
    assert any(note.startswith("12 tensors made of parts, or parts, of fused or stacked") for note in comparison.notes)
    audit, comparison = against(plain(fused(MODEL)), plain(MODEL))
    assert verdicts(comparison) == {"identical": 7} and not comparison.missing and not comparison.extra
    names = {tensor.name: tensor.reference_name for tensor in comparison.tensors}
    assert names[f"{L}mlp.experts.gate_up_proj"] == f"{L}mlp.experts.0.gate_proj.weight and 5 more"
    audit, comparison = against(plain(fused(MODEL)), fp8(MODEL))
    assert verdicts(comparison) == {"faithful": 4, "identical": 3} and not alarms(audit)


def test_a_wrong_part_of_a_stack_is_the_one_that_is_named(against: Against) -> None:
    name = f"{L}mlp.experts.1.up_proj.weight"
    audit, comparison = against({**fp8(MODEL), **quantised(name, MODEL[name], gain=2)}, plain(fused(MODEL)))
    assert [tensor.name for tensor in comparison.tensors if tensor.verdict == "different"] == [name]
    (finding,) = [one for one in audit.findings if one.check == "values_differ"]
    assert [place.tensor for place in finding.places] == [name]
    assert finding.places[0].factor == pytest.approx(2, rel=0.01)
    assert "all values are 2 times as large as they should be" in finding.message


def test_experts_that_were_swapped_and_parts_in_another_order(against: Against) -> None:
    one, two = (f"{L}mlp.experts.{expert}.up_proj.weight" for expert in (0, 2))
    audit, comparison = against(fp8({**MODEL, one: MODEL[two], two: MODEL[one]}), plain(MODEL))
    (finding,) = [found for found in audit.findings if found.check == "values_differ"]
    told = {place.tensor: place.message for place in finding.places}
    assert f"these are the weights of {two}" in told[one] and f"these are the weights of {one}" in told[two]
    name = f"{L}mlp.experts.gate_up_proj"
    stack = fused(MODEL)
    other = {**stack, name: np.concatenate([stack[name][:, 96:], stack[name][:, :96]], axis=1)}
    for reference in (plain(MODEL), plain(stack)):
        audit, comparison = against(plain(other), reference)
        (tensor,) = [tensor for tensor in comparison.tensors if tensor.verdict == "different"]
        assert (tensor.name, tensor.hypotheses[0].name) == (name, "part_order")
        assert "up_proj stands before gate_proj" in tensor.hypotheses[0].message


def test_transposed_matrices_squares_among_them(against: Against) -> None:
    turned = {name: x.T.copy() if x.ndim == 2 else x for name, x in MODEL.items()}
    audit, comparison = against(fp8(MODEL), plain(turned))
    assert verdicts(comparison) == {"faithful": 13, "identical": 3} and not alarms(audit)
    assert any(note.startswith("15 tensors stored transposed in the reference") for note in comparison.notes)


def test_shapes_that_cannot_be_brought_together(against: Against) -> None:
    name = f"{L}self_attn.q_proj.weight"
    audit, comparison = against(fp8({**MODEL, name: MODEL[name][:, :64].copy()}), plain(MODEL))
    (finding,) = [one for one in audit.findings if one.check == "shape_differs"]
    assert finding.severity == "error" and "[160, 64]" in finding.message and "[160, 128]" in finding.message
    audit, comparison = against(fp8({**MODEL, name: MODEL[name][:128].copy()}), plain(MODEL))
    (finding,) = [one for one in audit.findings if one.check == "shape_differs"]
    assert finding.severity == "warning" and "the last 32 are missing, unless they are padding" in finding.message
    stack = {f"{L}mlp.experts.down_proj": np.stack([weight(128, 96)] * 2)}
    audit, comparison = against(plain(stack), plain({name: x.swapaxes(1, 2) for name, x in stack.items()}))
    assert any("stacked matrices are stored transposed" in note for note in comparison.notes) and not alarms(audit)


def test_what_only_one_side_has(against: Against) -> None:
    ours = {name: x for name, x in MODEL.items() if "lm_head" not in name} | {"model.extra.weight": weight(4, 4)}
    _, comparison = against(plain(ours), plain(MODEL))
    assert (comparison.missing, comparison.extra) == (("model.extra.weight",), ("lm_head.weight",))
    assert any(note.startswith("1 tensor not in ") for note in comparison.notes)


def test_nothing_in_common_shows_names_of_both(against: Against) -> None:
    with pytest.raises(
        Fp8DebugError, match=r"no tensor in common .*it holds a\.b\.weight, c; .*holds lm_head.weight, .*same model"
    ):
        against(plain(MODEL), {"a.b.weight": ("F32", weight(2, 2)), "c": ("F32", np.ones(3))})


def test_one_cause_in_all_layers_is_one_finding_and_one_sentence(against: Against) -> None:
    tensors: dict[str, tuple[str, Array]] = {}
    for name, x in MODEL.items():
        tensors |= quantised(name, x, gain=4) if "proj" in name else {name: ("BF16", x)}
    audit, comparison = against(tensors, plain(MODEL))
    (finding,) = [one for one in audit.findings if one.check == "values_differ"]
    assert len(finding.places) == 13 and "13 of 16" in finding.message
    assert {round(place.factor or 0, 1) for place in finding.places} == {4.0}
    assert any("same cause explains 13 of the 13 tensors" in note for note in comparison.notes)


def test_several_references_tell_the_step_and_count_each_fault_once(written: Written) -> None:
    name = f"{L}self_attn.o_proj.weight"
    trained = {**MODEL, name: weight(128, 128)}
    paths = [
        written(plain(MODEL), folder="master"),
        written(plain(trained), folder="trained"),
        written(fp8(trained), folder="exported", configs=CONFIG),
    ]
    audit = audit_checkpoint(paths[2], paths[:2])
    three = audit.three_way
    assert three is not None
    master, middle, exported = map(str, paths)
    assert f"came in between {master} and {middle}" in three.verdict
    assert f"{exported} differs from {middle} by one rounding in 13 of 16 tensors" in three.verdict
    assert [(link.n_different, link.n_equal) for link in three.links] == [(1, 15), (1, 3), (0, 3)]
    (finding,) = [one for one in audit.findings if one.check == "values_differ"]
    assert [place.tensor for place in finding.places] == [name]
