"""What is quantised and what is kept, where it is written, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import torch

from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.quantize import casting, quantize_checkpoint
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.values import Dequantiser
from fp8debug.blocks import quantize_blocks
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.formats import E4M3
from fp8debug.recipes import BlockScaling, parse_recipe

Writer = Callable[..., Path]


def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(len(shape)).normal(0, 0.02, shape).astype(np.float32)


MOE = {
    "model.embed_tokens.weight": ("BF16", normal(1000, 64)),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", normal(64, 64)),
    "model.layers.0.self_attn.q_proj.bias": ("BF16", normal(64)),
    "model.layers.0.self_attn.q_norm.weight": ("BF16", normal(64)),
    "model.layers.0.mlp.gate.weight": ("BF16", normal(4, 64)),
    "model.layers.0.mlp.gate_proj.weight": ("BF16", normal(96, 64)),
    "model.layers.0.mlp.experts.gate_up_proj": ("BF16", normal(4, 96, 64)),
    "model.layers.0.mixer.conv1d.weight": ("BF16", normal(64, 1, 4)),
    "model.layers.0.self_attn.q_proj.lora_A.weight": ("F32", normal(8, 64)),
    "lm_head.weight": ("BF16", normal(1000, 64)),
    "visual.tokens": ("BF16", normal(1000, 64)),
    "steps": ("I64", np.arange(3)),
}


@pytest.fixture
def moe(written: Writer) -> Path:
    return written(MOE, configs={"config.json": {"vocab_size": 1000, "model_type": "moe"}}, folder="moe")


def test_linear_layers_are_quantised_and_the_rest_is_kept_to_the_byte(moe: Path, tmp_path: Path) -> None:
    done = quantize_checkpoint(moe, tmp_path / "out", "rowwise")
    assert {one.name for one in done.quantised} == {
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
    }
    why = {one.name: one.why for one in done.kept}
    assert why["model.embed_tokens.weight"] == "an embedding"
    assert why["model.layers.0.mlp.gate.weight"] == "a router"
    assert why["model.layers.0.self_attn.q_proj.lora_A.weight"] == "a low-rank adapter"
    assert why["lm_head.weight"] == "an output head"
    with open_store(moe) as before, open_store(tmp_path / "out") as after:
        for name in why:
            assert np.array_equal(before.whole(name), after.whole(name))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "moe"
    assert set(config["quantization_config"]["ignore"]) == {
        "lm_head",
        "model.layers.0.mlp.gate",
        "model.layers.0.self_attn.q_proj.lora_A",
    }


def test_patterns_choose_modules(moe: Path, tmp_path: Path) -> None:
    done = quantize_checkpoint(moe, tmp_path / "a", "current", include="lm_head|q_proj$")
    assert {one.name for one in done.quantised} == {"lm_head.weight", "model.layers.0.self_attn.q_proj.weight"}
    done = quantize_checkpoint(moe, tmp_path / "b", "current", exclude="experts|q_proj")
    assert {one.name for one in done.quantised} == {"model.layers.0.mlp.gate_proj.weight"}
    assert (
        "model.layers.0.self_attn.q_proj"
        in json.loads((tmp_path / "b" / "config.json").read_text())["quantization_config"]["ignore"]
    )


@pytest.mark.parametrize("recipe", ["current", "rowwise", "block", "mxfp8", "nvfp4:flavour=modelopt"])
def test_a_stack_is_cast_matrix_by_matrix(
    recipe: str, written: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bands of a few lines, so that each matrix is many of them: no block or amax crosses from one into the next."""
    stack = normal(3, 200, 160) * np.array([1, 100, 0.01], np.float32)[:, None, None]
    name = "layers.0.mlp.experts.w1.weight"
    source = written({name: ("F32", stack)}, folder="source")
    one_matrix = {f"layers.{i}.w1.weight": ("F32", matrix) for i, matrix in enumerate(stack)}
    alone = written(one_matrix, folder="alone")
    quantize_checkpoint(alone, tmp_path / "b", recipe)
    monkeypatch.setattr(casting, "CHUNK_BYTES", 5_000)
    quantize_checkpoint(source, tmp_path / "a", recipe)
    with open_store(tmp_path / "a") as a, open_store(tmp_path / "b") as b:
        (one,) = read_convention(a).quantised
        got = np.concatenate([band for _, band in Dequantiser(a, one).bands()]).reshape(stack.shape)
        for i, other in enumerate(sorted(read_convention(b).quantised, key=lambda q: q.name)):
            right = np.concatenate([band for _, band in Dequantiser(b, other).bands()])
            assert np.array_equal(got[i], right), i


def test_what_does_not_fill_its_blocks_is_kept_where_blocks_have_one_size(written: Writer, tmp_path: Path) -> None:
    source = written({"a.weight": ("F32", normal(40, 100)), "b.weight": ("F32", normal(40, 96))})
    done = quantize_checkpoint(source, tmp_path / "out", "mxfp8")
    assert [one.name for one in done.quantised] == ["b.weight"]
    assert [one.why for one in done.kept] == ["lines of 100 elements are not whole blocks of 32"]
    done = quantize_checkpoint(source, tmp_path / "blocks", "block")
    assert len(done.quantised) == 2 and done.kept == ()


def test_shards_companions_and_force(moe: Path, tmp_path: Path) -> None:
    (moe / "tokenizer.json").write_text("{}")
    out = tmp_path / "out"
    done = quantize_checkpoint(moe, out, "current", shard_bytes=100_000)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1 and "tokenizer.json" in done.files
    with open_store(out) as store:
        assert store.tensors.keys() == index["weight_map"].keys()
    with pytest.raises(UsageError, match="exists already; add --force"):
        quantize_checkpoint(moe, out, "block")
    quantize_checkpoint(moe, out, "nvfp4", "modelopt", force=True)
    assert sorted(file.name for file in out.iterdir()) == [
        "config.json", "hf_quant_config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_one_file_may_be_named(moe: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    done = quantize_checkpoint(moe, tmp_path / "files" / "small.safetensors", "current")
    assert done.files == ("config.json", "small.safetensors")
    with safetensors.safe_open(tmp_path / "files" / "small.safetensors", "numpy") as file:
        assert "model.layers.0.mlp.gate_proj.weight_scale" in file.keys()  # noqa: SIM118


def test_further_tensors_are_written_as_they_are_given(moe: Path, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.gate_proj.input_scale"
    extra = {name: ("F32", np.array(0.25, np.float32)), "x": ("BF16", np.ones(2, ml_dtypes.bfloat16))}
    quantize_checkpoint(moe, tmp_path / "out", "current", extra=extra)
    with open_store(tmp_path / "out") as store:
        assert store.tensors[name].shape == () and store.whole(name).view("<f4") == 0.25
        assert store.whole("x").tolist() == [0x80, 0x3F] * 2


READER = """
import numpy, safetensors, torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

with safetensors.safe_open("out/model.safetensors", "pt") as file:
    codes, scales = file.get_tensor("fc.weight"), file.get_tensor("fc.weight_scale_inv")
numpy.save("values.npy", Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32).numpy())
"""


def test_a_reader_of_the_dialect_agrees(written: Writer, tmp_path: Path, warm_trainers: Any) -> None:
    w = normal(256, 384)
    source = written({"fc.weight": ("F32", w)}, folder="source")
    quantize_checkpoint(source, tmp_path / "out", "block:power_of_two=false,flavour=deepseek")
    (tmp_path / "read.py").write_text(READER)
    done = warm_trainers.run(tmp_path, "read.py")
    assert done.returncode == 0, done.stderr
    recipe = BlockScaling(power_of_two=False, flavour="deepseek")
    assert np.array_equal(np.load(tmp_path / "values.npy"), quantize_blocks(w, recipe, "w", E4M3).values)


@pytest.mark.parametrize("recipe", ["current", "rowwise", "block", "mxfp8", "mxfp4", "nvfp4:flavour=torchao"])
def test_torchao_reads_what_is_written_for_it(recipe: str, written: Writer, tmp_path: Path) -> None:
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    source = written({"fc.weight": ("F32", normal(128, 256)), "fc.bias": ("F32", normal(128))}, folder="source")
    quantize_checkpoint(source, tmp_path / "out", recipe, "torchao")
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        read, left = unflatten_tensor_state_dict(tensors, file.metadata())
    assert read.keys() == {"fc.weight", "fc.bias"} and left == {}
    with open_store(tmp_path / "out") as store:
        (one,) = read_convention(store).quantised
        values = np.concatenate([band for _, band in Dequantiser(store, one).bands()])
    weight = read["fc.weight"]
    theirs = weight.dequantize() if recipe not in ("mxfp8", "mxfp4") else weight.dequantize(torch.float32)
    assert np.array_equal(theirs.float().numpy(), values)


@pytest.mark.parametrize(
    ("recipe", "dialect", "told"),
    [
        ("block", "deepsek", "--as deepsek: no dialect of that name is written; did you mean deepseek"),
        (
            "nvfp4",
            "deepseek",
            "--as deepseek holds no nvfp4, only current, block, mxfp8; nvfp4 is written as modelopt, ",
        ),
        ("delayed", None, "recipe delayed makes no checkpoint; expected one of current, static, rowwise, block"),
        ("bf16", None, "recipe bf16 makes no checkpoint"),
        ("static:scale=2", "cast", "recipe static:scale=2.0 as cast: it stores no scale; expected static, whose scale"),
        ("current:fp8_format=E5M2", "modelopt", "its codes cannot be E5M2; .* E5M2 is written as compressed-tensors"),
        ("blok", None, "unknown recipe"),
    ],
)
def test_pairs_that_do_not_exist(recipe: str, dialect: str | None, told: str, moe: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        quantize_checkpoint(moe, tmp_path / "out", recipe, dialect)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_quantised_or_written(moe: Path, tmp_path: Path, written: Writer) -> None:
    quantize_checkpoint(moe, tmp_path / "out", "current")
    for source, target, options, told in (
        (tmp_path / "out", "again", {}, r"out is quantised already: .* is F8_E4M3"),
        (moe, "again", {"include": "no such"}, r"would be quantised \(.*--include does not name it.*another --include"),
        (moe, "again", {"include": "("}, r"--include '\(' is no regular expression"),
        (moe, "no/folder", {}, "there is no folder"),
        (moe, "moe", {"force": True}, "is in the folder of what is read"),
        (moe, "moe/new.safetensors", {}, "is in the folder of what is read"),
        (moe, "a file", {}, "is a file; expected a folder"),
        (moe, "a.pt", {}, "this dialect is written to .safetensors files"),
        (moe, "others", {"force": True}, "holds another checkpoint, mine.safetensors; give another name"),
    ):
        (tmp_path / "a file").write_text("")
        (tmp_path / "others").mkdir(exist_ok=True)
        (tmp_path / "others" / "mine.safetensors").write_text("")
        with pytest.raises(UsageError, match=told):
            quantize_checkpoint(source, tmp_path / target, "current", **options)
    with pytest.raises(Fp8DebugError):
        quantize_checkpoint(tmp_path / "nothing", tmp_path / "again", "current")


def test_names_and_dtypes_that_a_file_cannot_hold(written: Writer, tmp_path: Path) -> None:
    tensors = {"a.weight": ("F32", normal(32, 32)), "a.weight_scale": ("F32", np.ones(1)), "x": ("U32", np.arange(2))}
    source = written(tensors, folder="source")
    with pytest.raises(UsageError, match=r"a\.weight_scale would be written twice as compressed-tensors"):
        quantize_checkpoint(source, tmp_path / "out", "current")
    with pytest.raises(UsageError, match="x is U32, which te files are not written with"):
        quantize_checkpoint(source, tmp_path / "out", "current", "te")


def test_a_small_vocabulary_keeps_no_layer(written: Writer, tmp_path: Path) -> None:
    tensors = {name: ("F32", normal(256, 256)) for name in ("layers.0.fc.weight", "output.weight")}
    source = written(tensors, configs={"config.json": {"text_config": {"vocab_size": 256}}}, folder="source")
    done = quantize_checkpoint(source, tmp_path / "out", "current")
    assert [one.name for one in done.quantised] == ["layers.0.fc.weight"]
    assert [one.why for one in done.kept] == ["as long as the vocabulary"]


def test_nan_and_zeros_are_told(written: Writer, tmp_path: Path) -> None:
    w = normal(64, 64)
    w[3, 5] = np.nan
    source = written({"a.weight": ("F32", w), "z.weight": ("F32", np.zeros((64, 64)))}, folder="source")
    done = {one.name: one for one in quantize_checkpoint(source, tmp_path / "out", "current").quantised}
    assert done["a.weight"].n_nonfinite == 1 and done["a.weight"].sqnr_db is not None
    assert done["z.weight"].n_nonfinite == 0 and done["z.weight"].sqnr_db is None
    with open_store(tmp_path / "out") as store:
        assert store.whole("z.weight_scale").view("<f4").tolist() == [1.0]


def test_zeros_that_would_become_nan_are_kept(written: Writer, tmp_path: Path) -> None:
    """The scale of their tensor would be 0, and those of their blocks 0 / 0."""
    source = written({"a.weight": ("F32", normal(64, 64)), "z.weight": ("F32", np.zeros((64, 64)))}, folder="source")
    done = quantize_checkpoint(source, tmp_path / "out", "nvfp4:flavour=modelopt")
    assert [(one.name, one.why) for one in done.kept] == [("z.weight", "all zeros, of which this recipe makes NaN")]
    quantize_checkpoint(source, tmp_path / "te", "nvfp4", "compressed-tensors")
    with open_store(tmp_path / "te") as store:
        assert store.whole("z.weight_global_scale").view("<f4").tolist() == [1.0]


def test_recipes_may_be_given_as_they_are(moe: Path, tmp_path: Path) -> None:
    done = quantize_checkpoint(moe, tmp_path / "out", parse_recipe("static:scale=64"))
    assert (done.dialect, done.recipe) == ("compressed-tensors", "static:scale=64.0")
