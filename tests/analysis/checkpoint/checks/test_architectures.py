"""Names and shapes of models that are published: whole as they are, so that nothing above a note may be said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from fp8debug.analysis.checkpoint.checks.completeness import completeness
from fp8debug.analysis.checkpoint.checks.exclusions import exclusions
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject, check_texts
from fp8debug.analysis.checkpoint.checks.lost_scales import lost_scales
from fp8debug.analysis.checkpoint.checks.numbering import numbering
from fp8debug.analysis.checkpoint.checks.pairs import pairs
from fp8debug.analysis.checkpoint.checks.shape import shape
from fp8debug.analysis.checkpoint.checks.sharding import sharding
from fp8debug.analysis.checkpoint.checks.twice import scale_twice
from fp8debug.analysis.checkpoint.checks.unmatched import unmatched

SubjectOf = Callable[..., Subject]
Shape = tuple[int, ...]
STRUCTURE = (pairs, scale_twice, shape, lost_scales, completeness, numbering, exclusions, unmatched)


class Model(NamedTuple):
    """Headers in the making."""

    headers: dict[str, tuple[str, Shape]]
    configs: dict[str, Any]

    def plain(self, name: str, *shape: int, dtype: str = "BF16") -> None:
        self.headers[name] = (dtype, shape)

    def block(self, module: str, lines: int, length: int) -> None:
        self.headers[f"{module}.weight"] = ("F8_E4M3", (lines, length))
        self.headers[f"{module}.weight_scale_inv"] = ("F32", (-(-lines // 128), -(-length // 128)))

    def static(self, module: str, lines: int, length: int, scale: Shape = (), inputs: Shape | None = ()) -> None:
        self.headers[f"{module}.weight"] = ("F8_E4M3", (lines, length))
        self.headers[f"{module}.weight_scale"] = ("F32", scale)
        if inputs is not None:
            self.headers[f"{module}.input_scale"] = ("F32", inputs)

    def nvfp4(self, module: str, lines: int, length: int) -> None:
        self.headers[f"{module}.weight"] = ("U8", (lines, length // 2))
        self.headers[f"{module}.weight_scale"] = ("F8_E4M3", (lines, length // 16))
        self.headers[f"{module}.weight_scale_2"] = self.headers[f"{module}.input_scale"] = ("F32", ())


def new(**quantised: Any) -> Model:
    return Model({}, {"config.json": {"quantization_config": quantised}} if quantised else {})


def ends(model: Model, prefix: str = "model.", head: bool = True) -> None:
    model.plain(f"{prefix}embed_tokens.weight", 1024, 256)
    model.plain(f"{prefix}norm.weight", 256)
    if head:
        model.plain("lm_head.weight", 1024, 256)


def norms(model: Model, layer: str) -> None:
    model.plain(f"{layer}.input_layernorm.weight", 256)
    model.plain(f"{layer}.post_attention_layernorm.weight", 256)


def deepseek_v3() -> Model:
    """Three dense layers, a layer that predicts a further token (61), latent attention, no exclusion list."""
    model = new(quant_method="fp8", fmt="e4m3", weight_block_size=[128, 128], activation_scheme="dynamic")
    model.configs["config.json"] |= {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128}
    ends(model)
    for number in range(62):
        layer = f"model.layers.{number}"
        norms(model, layer)
        for role, lines, length in (
            ("q_a_proj", 1536, 7168), ("q_b_proj", 24576, 1536), ("kv_a_proj_with_mqa", 576, 7168),
            ("kv_b_proj", 32768, 512), ("o_proj", 7168, 16384),
        ):  # fmt: skip
            model.block(f"{layer}.self_attn.{role}", lines, length)
        model.plain(f"{layer}.self_attn.q_a_layernorm.weight", 1536)
        model.plain(f"{layer}.self_attn.kv_a_layernorm.weight", 512)
        experts = [f"experts.{n}" for n in range(2)] + ["shared_experts"] if number >= 3 else [""]
        for expert in experts:
            mlp = ".".join(filter(None, (layer, "mlp", expert)))
            size = 2048 if number >= 3 else 18432
            for role in ("gate_proj", "up_proj"):
                model.block(f"{mlp}.{role}", size, 7168)
            model.block(f"{mlp}.down_proj", 7168, size)
        if number >= 3:
            model.plain(f"{layer}.mlp.gate.weight", 4, 7168)
            model.plain(f"{layer}.mlp.gate.e_score_correction_bias", 4, dtype="F32")
    for name in ("embed_tokens", "shared_head.head", "eh_proj"):
        model.plain(f"model.layers.61.{name}.weight", 7168, 14336)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        model.plain(f"model.layers.61.{name}.weight", 7168)
    return model


def qwen3_moe() -> Model:
    """Norms and routers of every layer are listed by name."""
    excluded = ["lm_head"]
    model = new(quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=excluded)
    ends(model)
    for number in range(16):
        layer = f"model.layers.{number}"
        norms(model, layer)
        excluded += [f"{layer}.{name}" for name in ("input_layernorm", "mlp.gate", "post_attention_layernorm")]
        for role, lines in (("q_proj", 4096), ("k_proj", 512), ("v_proj", 512), ("o_proj", 2048)):
            model.block(f"{layer}.self_attn.{role}", lines, 2048 if role != "o_proj" else 4096)
        for norm in ("q_norm", "k_norm"):
            model.plain(f"{layer}.self_attn.{norm}.weight", 128)
        model.plain(f"{layer}.mlp.gate.weight", 128, 2048)
        for expert in range(3):
            for role in ("gate_proj", "up_proj"):
                model.block(f"{layer}.mlp.experts.{expert}.{role}", 768, 2048)
            model.block(f"{layer}.mlp.experts.{expert}.down_proj", 2048, 768)
    return model


def qwen3_tied() -> Model:
    """The head is the embedding: it is on the list and not in the file."""
    model = new(quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=["lm_head"])
    model.configs["config.json"]["tie_word_embeddings"] = True
    ends(model, head=False)
    for number in range(28):
        norms(model, f"model.layers.{number}")
        for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
            model.block(f"model.layers.{number}.self_attn.{role}", 1024, 1024)
    return model


def qwen3_next() -> Model:
    """Three layers of linear attention to one of the usual kind, and a part that predicts further tokens."""
    excluded = ["lm_head", "model.embed_tokens", "mtp.fc"]
    model = new(quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=excluded)
    ends(model)
    for number in range(16):
        layer = f"model.layers.{number}"
        norms(model, layer)
        excluded += [f"{layer}.mlp.gate", f"{layer}.mlp.shared_expert_gate"]
        if number % 4 == 3:
            for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
                model.block(f"{layer}.self_attn.{role}", 2048, 2048)
            model.plain(f"{layer}.self_attn.q_norm.weight", 256)
        else:
            excluded += [f"{layer}.linear_attn.conv1d", f"{layer}.linear_attn.in_proj_ba"]
            model.block(f"{layer}.linear_attn.in_proj_qkvz", 12288, 2048)
            model.block(f"{layer}.linear_attn.out_proj", 2048, 4096)
            model.plain(f"{layer}.linear_attn.in_proj_ba.weight", 64, 2048)
            model.plain(f"{layer}.linear_attn.conv1d.weight", 8192, 1, 4)
            model.plain(f"{layer}.linear_attn.A_log", 32)
            model.plain(f"{layer}.linear_attn.dt_bias", 32)
        model.plain(f"{layer}.mlp.gate.weight", 512, 2048)
        model.plain(f"{layer}.mlp.shared_expert_gate.weight", 1, 2048)
        for expert in ("experts.0", "experts.1", "experts.2", "shared_expert"):
            for role in ("gate_proj", "up_proj", "down_proj"):
                model.block(f"{layer}.mlp.{expert}.{role}", 512, 2048)
    model.plain("mtp.fc.weight", 2048, 4096)
    model.block("mtp.layers.0.self_attn.q_proj", 2048, 2048)
    return model


def llama() -> Model:
    """compressed-tensors with static scales; only the head is left alone."""
    model = new(
        quant_method="compressed-tensors", ignore=["lm_head"],
        config_groups={"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
    )  # fmt: skip
    ends(model)
    for number in range(32):
        layer = f"model.layers.{number}"
        norms(model, layer)
        for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
            model.static(f"{layer}.self_attn.{role}", 1024 if role[0] in "kv" else 4096, 4096, (1,), (1,))
        for role in ("gate_proj", "up_proj", "down_proj"):
            model.static(f"{layer}.mlp.{role}", 1024, 4096, (1,), (1,))
    return model


def llama_per_channel_with_kv() -> Model:
    model = new(
        quant_method="compressed-tensors", ignore=["lm_head"], kv_cache_scheme={"num_bits": 8, "type": "float"},
        config_groups={"group_0": {"targets": ["Linear"], "weights": {"strategy": "channel"}}},
    )  # fmt: skip
    ends(model)
    for number in range(16):
        layer = f"model.layers.{number}"
        norms(model, layer)
        for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
            model.static(f"{layer}.self_attn.{role}", 1024, 4096, (1024, 1), None)
        model.headers[f"{layer}.self_attn.k_scale"] = model.headers[f"{layer}.self_attn.v_scale"] = ("F32", (1,))
    return model


def mixtral() -> Model:
    excluded = ["lm_head", *(f"model.layers.{n}.block_sparse_moe.gate" for n in range(8))]
    model = new(
        quant_method="compressed-tensors", ignore=excluded, config_groups={"group_0": {"targets": ["Linear"]}}
    )  # fmt: skip
    ends(model)
    for number in range(8):
        layer = f"model.layers.{number}"
        norms(model, layer)
        for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
            model.static(f"{layer}.self_attn.{role}", 4096, 4096)
        model.plain(f"{layer}.block_sparse_moe.gate.weight", 8, 4096)
        for expert in range(8):
            for role in ("w1", "w2", "w3"):
                model.static(f"{layer}.block_sparse_moe.experts.{expert}.{role}", 1024, 4096)
    return model


def minimax() -> Model:
    """One word of the list stands for a module of every layer."""
    excluded = ["gate", "e_score_correction_bias", "lm_head"]
    model = new(quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=excluded)
    ends(model)
    for number in range(20):
        layer = f"model.layers.{number}"
        norms(model, layer)
        for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
            model.block(f"{layer}.self_attn.{role}", 3072, 3072)
        model.plain(f"{layer}.block_sparse_moe.gate.weight", 256, 3072)
        model.plain(f"{layer}.block_sparse_moe.e_score_correction_bias", 256)
        for expert in range(6):
            for role in ("w1", "w2", "w3"):
                model.block(f"{layer}.block_sparse_moe.experts.{expert}.{role}", 1536, 3072)
    return model


def gemma3_vision() -> Model:
    """A vision tower in BF16 under the same roles as the quantised language model; sandwich norms."""
    model = new(
        quant_method="compressed-tensors", ignore=["re:.*lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
        config_groups={"group_0": {"targets": ["Linear"], "weights": {"strategy": "channel"}}},
    )  # fmt: skip
    ends(model, "language_model.model.", head=False)
    for number in range(34):
        layer = f"language_model.model.layers.{number}"
        norms(model, layer)
        for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
            model.static(f"{layer}.self_attn.{role}", 2560, 2560, (2560, 1), None)
        for role in ("gate_proj", "up_proj", "down_proj"):
            model.static(f"{layer}.mlp.{role}", 2560, 2560, (2560, 1), None)
    for number in range(27):
        layer = f"vision_tower.vision_model.encoder.layers.{number}"
        for role in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.out_proj", "mlp.fc1", "mlp.fc2"):
            model.plain(f"{layer}.{role}.weight", 1152, 1152)
            model.plain(f"{layer}.{role}.bias", 1152)
    model.plain("multi_modal_projector.mm_input_projection_weight", 1152, 2560)
    return model


def deepseek_nvfp4() -> Model:
    """ModelOpt: experts in NVFP4, attention and the last layer left alone by wildcards."""
    excluded = ["lm_head", *(f"model.layers.{n}.self_attn*" for n in range(12)), "model.layers.12*"]
    model = new()
    model.configs["hf_quant_config.json"] = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": excluded},
    }
    ends(model)
    for number in range(13):
        layer = f"model.layers.{number}"
        norms(model, layer)
        for role in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
            model.plain(f"{layer}.self_attn.{role}.weight", 512, 512)
        for expert in [f"experts.{n}" for n in range(8)] + ["shared_experts"] if number > 2 else [""]:
            for role in ("gate_proj", "up_proj", "down_proj"):
                mlp = ".".join(filter(None, (layer, "mlp", expert)))
                if number == 12:
                    model.plain(f"{mlp}.{role}.weight", 512, 512)
                else:
                    model.nvfp4(f"{mlp}.{role}", 512, 512)
        if number > 2:
            model.plain(f"{layer}.mlp.gate.weight", 8, 512)
    return model


def nemotron_h() -> Model:
    """Every layer is a mixer of another kind, in no regular order."""
    kinds = "MEMEM*EMEMEMEM*EMEME*MEMEME-"
    excluded = ["lm_head", "backbone.embeddings"]
    model = new()
    model.configs["hf_quant_config.json"] = {"quantization": {"quant_algo": "FP8", "exclude_modules": excluded}}
    model.plain("backbone.embeddings.weight", 1024, 512)
    model.plain("lm_head.weight", 1024, 512)
    for number, kind in enumerate(kinds):
        mixer = f"backbone.layers.{number}.mixer"
        model.plain(f"backbone.layers.{number}.norm.weight", 512)
        if kind == "M":
            excluded.append(f"{mixer}.conv1d")
            model.static(f"{mixer}.in_proj", 2048, 512)
            model.static(f"{mixer}.out_proj", 512, 1024)
            model.plain(f"{mixer}.conv1d.weight", 1536, 1, 4)
            model.plain(f"{mixer}.conv1d.bias", 1536)
            model.plain(f"{mixer}.A_log", 16)
        elif kind == "*":
            for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
                model.static(f"{mixer}.{role}", 512, 512)
        elif kind == "E":
            excluded.append(f"{mixer}.gate")
            model.plain(f"{mixer}.gate.weight", 4, 512)
            for expert in range(4):
                model.static(f"{mixer}.experts.{expert}.up_proj", 512, 512)
                model.static(f"{mixer}.experts.{expert}.down_proj", 512, 512)
        else:
            model.static(f"{mixer}.up_proj", 512, 512)
            model.static(f"{mixer}.down_proj", 512, 512)
    return model


def first_and_last_left_alone() -> Model:
    """Some layers are in high precision, and the list says so."""
    excluded = ["lm_head", "model.layers.0", "model.layers.23.mlp.down_proj"]
    model = new(quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=excluded)
    ends(model)
    for number in range(24):
        norms(model, f"model.layers.{number}")
        for role in ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj"):
            module = f"model.layers.{number}.{role}"
            if number == 0 or module in excluded:
                model.plain(f"{module}.weight", 512, 512)
            else:
                model.block(module, 512, 512)
    return model


def gpt_oss() -> Model:
    """Stacks of experts in MXFP4: blocks and scales apart, biases beside them."""
    excluded = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    model = new(quant_method="mxfp4", modules_to_not_convert=excluded)
    ends(model)
    for number in range(24):
        layer = f"model.layers.{number}"
        norms(model, layer)
        for role in ("q_proj", "k_proj", "v_proj", "o_proj"):
            model.plain(f"{layer}.self_attn.{role}.weight", 512, 2880)
            model.plain(f"{layer}.self_attn.{role}.bias", 512)
        model.plain(f"{layer}.self_attn.sinks", 64)
        model.plain(f"{layer}.mlp.router.weight", 32, 2880)
        model.plain(f"{layer}.mlp.router.bias", 32)
        for role, lines in (("gate_up_proj", 5760), ("down_proj", 2880)):
            model.headers[f"{layer}.mlp.experts.{role}_blocks"] = ("U8", (32, lines, 90, 16))
            model.headers[f"{layer}.mlp.experts.{role}_scales"] = ("U8", (32, lines, 90))
            model.plain(f"{layer}.mlp.experts.{role}_bias", 32, lines)
    return model


def flux_scaled() -> Model:
    """ComfyUI: blocks in scaled FP8, the rest in BF16, no configuration."""
    model = new()
    model.headers["scaled_fp8"] = ("F8_E4M3", (2,))

    def scaled(module: str) -> None:
        model.headers[f"{module}.weight"] = ("F8_E4M3", (3072, 3072))
        model.headers[f"{module}.scale_weight"] = ("F32", (1,))
        model.plain(f"{module}.bias", 3072)

    for number in range(19):
        for side in ("img", "txt"):
            for role in ("attn.qkv", "attn.proj", "mlp.0", "mlp.2", "mod.lin"):
                scaled(f"double_blocks.{number}.{side}_{role}")
            model.plain(f"double_blocks.{number}.{side}_attn.norm.query_norm.scale", 128)
            model.plain(f"double_blocks.{number}.{side}_attn.norm.key_norm.scale", 128)
    for number in range(38):
        for role in ("linear1", "linear2", "modulation.lin"):
            scaled(f"single_blocks.{number}.{role}")
        model.plain(f"single_blocks.{number}.norm.query_norm.scale", 128)
    for name in ("img_in", "txt_in", "time_in.in_layer", "time_in.out_layer", "final_layer.linear"):
        model.plain(f"{name}.weight", 3072, 256)
        model.plain(f"{name}.bias", 3072)
    return model


def flux_cast() -> Model:
    """The same cast to FP8 with no scale at all."""
    model = flux_scaled()
    for name in [name for name in model.headers if name.endswith("scale_weight") or name == "scaled_fp8"]:
        del model.headers[name]
    return model


def bf16_zoo() -> Model:
    """Encoder and decoder, a U-net, a stack of transformer blocks whose last one is cut: nothing is quantised."""
    model = new()
    for side in ("encoder", "decoder"):
        for block in range(12):
            for number, name in enumerate(("SelfAttention", "EncDecAttention", "DenseReluDense")):
                roles = ("wi_0", "wi_1", "wo") if number == 2 else ("q", "k", "v", "o")
                if side == "encoder" and number == 1:
                    continue
                place = f"{side}.block.{block}.layer.{min(number, 1) if side == 'encoder' else number}"
                model.plain(f"{place}.layer_norm.weight", 64)
                for role in roles:
                    model.plain(f"{place}.{name}.{role}.weight", 64, 64)
        model.plain(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", 32, 8)
    for number in range(12):
        place = f"model.diffusion_model.input_blocks.{number}.0"
        if number == 0:
            model.plain(f"{place}.weight", 320, 4, 3, 3)
            model.plain(f"{place}.bias", 320)
        elif number in (3, 6, 9):
            model.plain(f"{place}.op.weight", 320, 320, 3, 3)
            model.plain(f"{place}.op.bias", 320)
        else:
            for layer in ("in_layers.0", "in_layers.2", "emb_layers.1", "out_layers.0", "out_layers.3"):
                model.plain(f"{place}.{layer}.weight", 320, 320)
                model.plain(f"{place}.{layer}.bias", 320)
            if number in (4, 7):
                model.plain(f"{place}.skip_connection.weight", 320, 320)
                model.plain(f"{place}.skip_connection.bias", 320)
    for number in range(24):
        for role in ("qkv", "proj"):
            if (number, role) != (23, "proj"):
                model.plain(f"joint_blocks.{number}.context_block.attn.{role}.weight", 64, 64)
            model.plain(f"joint_blocks.{number}.x_block.attn.{role}.weight", 64, 64)
    for number in range(24):
        for role in ("k_proj", "v_proj", "q_proj", "out_proj"):
            model.plain(f"model.encoder.layers.{number}.self_attn.{role}.weight", 64, 64)
            if role != "k_proj":
                model.plain(f"model.encoder.layers.{number}.self_attn.{role}.bias", 64)
    return model


MODELS = [
    deepseek_v3, qwen3_moe, qwen3_tied, qwen3_next, llama, llama_per_channel_with_kv, mixtral, minimax, gemma3_vision,
    deepseek_nvfp4, nemotron_h, first_and_last_left_alone, gpt_oss, flux_scaled, flux_cast, bf16_zoo,
]  # fmt: skip


def loud(hits: list[Hit]) -> list[str]:
    return [
        f"{hit.check}: {hit.place.message}"
        for hit in hits
        if (hit.severity or check_texts()[hit.check].severity) != "note"
    ]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_a_published_model_is_whole(make: Callable[[], Model], read_subject: SubjectOf) -> None:
    model = make()
    subject = read_subject(model.headers, configs=model.configs)
    assert (subject.convention.dialect is None) == (make is bf16_zoo)
    assert subject.convention.unknown == ()
    assert loud([hit for check in STRUCTURE for hit in check(subject)]) == []


def test_a_published_model_that_does_not_fit_32_ranks(read_subject: SubjectOf) -> None:
    model = deepseek_v3()
    subject = read_subject(model.headers, configs=model.configs, tp=(8, 16, 32))
    hits = [hit for hit in sharding(subject) if hit.check != "shard_keeps_blocks"]
    assert {(hit.place.numbers["tp"], hit.place.numbers["size"]) for hit in hits} == {(32, 18432), (32, 2048)}
    assert [hit.place.numbers["tp"] for hit in sharding(subject) if hit.check == "shard_keeps_blocks"] == [8, 16]
