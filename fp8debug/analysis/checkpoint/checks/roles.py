"""How tensor parallelism cuts a layer, by the role that its name gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Cut = Literal["lines", "columns", "none", "unknown"]
"""lines: column-parallel, the output channels (N) are spread | columns: row-parallel, the inputs (K) are."""

_LINES = frozenset({
    "q_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "q", "k", "v", "wq", "wk", "wv", "query", "key", "value",
    "query_key_value", "W_pack", "to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "q_b_proj",
    "kv_b_proj", "wq_b", "wkv_b", "in_proj_qkv", "in_proj_qkvz", "linear_qkv", "gate_proj", "up_proj", "gate_up_proj",
    "gate_up", "w1", "w3", "w13", "fc1", "fc_in", "layernorm_qkv", "wi", "wi_0", "wi_1", "dense_h_to_4h", "linear_fc1",
    "lm_head", "embed_tokens", "word_embeddings", "wte", "embed", "output_layer", "tok_embeddings",
})  # fmt: skip
_COLUMNS = frozenset({
    "o_proj", "proj", "out_proj", "wo", "wo_b", "down_proj", "w2", "fc2", "fc_out", "dense_4h_to_h", "linear_proj",
    "linear_fc2", "to_add_out",
})  # fmt: skip
_WHOLE = frozenset({
    "gate", "router", "shared_expert_gate", "q_a_proj", "kv_a_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa",
    "wq_a", "wkv_a", "wkv", "eh_proj", "weights_proj",
})  # fmt: skip
_KEYS_AND_VALUES = frozenset({"k_proj", "v_proj", "k", "v", "wk", "wv", "key", "value"})
_FUSED_QKV = frozenset({"qkv_proj", "qkv", "query_key_value", "W_pack", "linear_qkv"})
_FUSED_GATE_UP = frozenset({"gate_up_proj", "gate_up", "w13"})


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads as the configuration states them."""

    n: int
    n_kv: int
    size: int
    """Lines of each."""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines or columns of a matrix that are cut apart from the others."""

    name: str
    """`q`, or several of one size, `k and of v`; empty: the whole matrix."""
    size: int
    parts: int
    """Into how many."""


def cut_of(module: str) -> Cut:
    """The axis that is cut, by the last word of a module's name that is no number."""
    words = [word for word in module.split(".") if not word.isdecimal()]
    role = words[-1].removesuffix("_blocks").removesuffix("_weight") if words else ""
    if role in _WHOLE or "indexer" in words:
        return "none"
    return "lines" if role in _LINES else "columns" if role in _COLUMNS else "unknown"


def sections(module: str, size: int, tp: int, heads: Heads | None) -> tuple[Section, ...]:
    """What of `size` lines is cut into how many parts: of fused matrices every part of its own.

    Keys and values of fewer heads than `tp` are cut into as many parts as there are heads, and each part is held
    several times (vllm, model_executor/layers/linear.py, `QKVParallelLinear`).
    """
    role = module.rpartition(".")[2]
    # A vision tower beside the model has other heads.
    is_of_model = heads is not None and size == heads.n_kv * heads.size
    n_kv = min(tp, heads.n_kv) if heads is not None else tp
    if role in _KEYS_AND_VALUES and is_of_model:
        return (Section("", size, n_kv),)
    if role in _FUSED_GATE_UP and size % 2 == 0:
        return (Section("gate and of up", size // 2, tp),)
    if role in _FUSED_QKV and heads is not None and size == (heads.n + 2 * heads.n_kv) * heads.size:
        kv = heads.n_kv * heads.size
        return Section("q", heads.n * heads.size, tp), Section("k and of v", kv, n_kv)
    return (Section("", size, tp),)


def heads_of(configs: Mapping[str, Mapping[str, Any]]) -> Heads | None:
    """What config.json says of attention heads; None: nothing."""
    config = configs.get("config.json", {})
    for table in (config, config.get("text_config"), config.get("llm_config")):
        if isinstance(table, Mapping) and (n := _count(table, "num_attention_heads")):
            size = _count(table, "head_dim") or _count(table, "hidden_size") // n
            return Heads(n, _count(table, "num_key_value_heads") or n, size)
    return None


def _count(table: Mapping[str, Any], key: str) -> int:
    value = table.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
