"""Blocks that tensor parallelism cuts, with the numbers that readers stop at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.sharding import checked_tp, sharding
from fp8debug.errors import UsageError

SubjectOf = Callable[..., Subject]


def one(module: str, lines: int, length: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    grid = (-(-lines // 128), -(-length // 128))
    return {f"{module}.weight": ("F8_E4M3", (lines, length)), f"{module}.weight_scale_inv": ("F32", grid)}


def cut(subject: Subject) -> dict[int, Hit]:
    return {int(hit.place.numbers["tp"] or 0): hit for hit in sharding(subject) if hit.check == "shard_cuts_block"}


@pytest.mark.parametrize(
    ("size", "shards"),
    [
        (3072, {16: 192, 32: 96}),
        (18432, {32: 576}),
        (7168, {16: 448, 32: 224}),
        (2048, {32: 64}),
    ],
)
@pytest.mark.parametrize("role", ["up_proj", "down_proj"])
def test_which_sizes_cut_a_block(subject_of: SubjectOf, role: str, size: int, shards: dict[int, int]) -> None:
    shape = (size, 256) if role == "up_proj" else (256, size)
    hits = cut(subject_of(one(f"layers.0.mlp.{role}", *shape), tp=(8, 16, 32)))
    assert {tp: hit.place.numbers["shard"] for tp, hit in hits.items()} == shards
    assert {hit.place.numbers["axis"] for hit in hits.values()} == {"lines" if role == "up_proj" else "columns"}


def test_the_message_says_which_shards_have_which_blocks(subject_of: SubjectOf) -> None:
    hits = cut(subject_of(one("layers.0.mlp.up_proj", 3072, 256), tp=(16,)))
    assert hits[16].place.message == (
        "--tp 16: layers.0.mlp.up_proj.weight: 3072 lines / 16 = 192, which is no multiple of the block of 128: "
        "shard 0 has blocks 0-1, shard 1 has blocks 1-2, shard 2 has blocks 3-4, shard 3 has blocks 4-5 and so on."
    )


def test_what_fits_is_a_note_and_tensors_of_a_kind_are_one_hit(subject_of: SubjectOf) -> None:
    headers: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(3):
        headers |= one(f"layers.{layer}.mlp.down_proj", 256, 3072)
    (note, warning) = sharding(subject_of(headers, tp=(8, 16)))
    assert (note.check, warning.check) == ("shard_keeps_blocks", "shard_cuts_block")
    assert "3 tensors layers.*.mlp.down_proj.weight" in warning.place.message


def test_a_size_that_ranks_cannot_share_evenly(subject_of: SubjectOf) -> None:
    hits = cut(subject_of(one("layers.0.mlp.up_proj", 3000, 256), tp=(16,)))
    assert "3000 lines / 16 is no whole number" in hits[16].place.message


def test_layers_that_every_rank_holds_are_not_cut_and_unknown_ones_only_watched(subject_of: SubjectOf) -> None:
    assert not cut(subject_of(one("layers.0.self_attn.kv_a_proj_with_mqa", 576, 7168), tp=(16,)))
    hits = list(sharding(subject_of(one("layers.0.mixer.strange", 192, 256), tp=(2,))))
    assert [(hit.severity, hit.place.numbers["axis"]) for hit in hits] == [("watch", "lines")]
    assert "its name does not tell how it is cut" in hits[0].place.message


def test_fewer_key_heads_than_ranks_and_fused_matrices(subject_of: SubjectOf) -> None:
    config: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
    configs = {"config.json": config}
    assert not cut(subject_of(one("layers.0.self_attn.k_proj", 512, 256), configs=configs, tp=(8,)))
    config["head_dim"] = 64
    hits = cut(subject_of(one("layers.0.self_attn.k_proj", 256, 256), configs=configs, tp=(8,)))
    assert "256 lines / 4 = 64" in hits[8].place.message and "held by 2 ranks" in hits[8].place.message
    qkv = subject_of(one("layers.0.self_attn.qkv_proj", 40 * 64, 256), configs=configs, tp=(8,))
    assert "2048 lines of q" not in "".join(hit.place.message for hit in sharding(qkv))  # 256 a shard
    assert "256 lines of k and of v / 4 = 64" in "".join(hit.place.message for hit in sharding(qkv))
    fused = cut(subject_of(one("layers.0.mlp.gate_up_proj", 2 * 384, 256), tp=(2,)))
    assert "384 lines of gate and of up / 2 = 192" in fused[2].place.message


def test_a_consumer_that_stops_makes_it_an_error(subject_of: SubjectOf) -> None:
    headers = one("layers.0.mlp.up_proj", 3072, 256)
    (hit,) = sharding(subject_of(headers, tp=(16,), consumer="vllm"))
    assert hit.severity == "error"
    (hit,) = sharding(subject_of(headers, tp=(16,)))
    assert hit.severity is None


def test_scales_for_lines_or_tensors_are_never_cut(subject_of: SubjectOf) -> None:
    headers = {"a.up_proj.weight": ("F8_E4M3", (3072, 256)), "a.up_proj.weight_scale_inv": ("F32", (1,))}
    assert not list(sharding(subject_of(headers, tp=(16,))))


def test_no_number_of_ranks() -> None:
    with pytest.raises(UsageError, match="--tp 0: got 0 ranks"):
        checked_tp([8, 0])
    assert checked_tp([8, 4, 8]) == (8, 4)
