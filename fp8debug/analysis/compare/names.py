"""What a setting is called and what it is about: the precision, the training, or neither."""

from __future__ import annotations

import re
from collections.abc import Mapping

INTENDED = "intended"
UNINTENDED = "unintended"
NOTE = "note"

_ALIASES = {
    "torch": "versions.torch", "torch_version": "versions.torch", "pytorch_version": "versions.torch",
    "random_seed": "seed", "train_seed": "seed",
    "data_seed": "data order", "data_order": "data order", "shuffle_seed": "data order", "data_checksum": "data order",
    "lr": "learning rate", "learning_rate": "learning rate", "max_lr": "learning rate", "peak_lr": "learning rate",
    "batch": "batch size", "global_batch_size": "batch size", "batch_size": "batch size",
    "train_batch_size": "batch size",
    "tokens_per_step": "tokens a step", "batch_tokens": "tokens a step", "tokens_per_batch": "tokens a step",
    "num_gpus": "world_size", "world": "world_size", "n_gpus": "world_size", "commit": "git_commit",
    "git_sha": "git_commit", "git_hash": "git_commit", "gpu": "device", "gpu_name": "device",
}  # fmt: skip
_OWN_SWITCH = re.compile(r"offload|param|gather|checkpoint|recompute|accumulation_fusion|weight_cache|all_?reduce|comm")
"""What is a switch of its own although its name speaks of FP8."""
_PRECISION = re.compile(
    r"fp8|fp4|float8|float4|mxfp|nvfp|precision|recipe|emulate|keep_bf16|(^|[_.])plan$|dtype|bf16|fp16|amax|(^|[_.])margin$"
    r"|quant|(^|[_.])rolls$"
)
_NOT_THE_TRAINING = re.compile(
    r"(.*[_.])?(out|output|output_dir|out_dir|save_dir|log_dir|logdir|run_name|run_id|wandb\w*|created_at|closed_at|hostname"
    r"|timestamp|tensorboard_dir|max_steps|num_steps|train_iters|schema_version|master_port|log_every|log_interval)"
    r"|name|project|status|status_reason|host|user|path|date|time|notes?|id|steps|save|pid|resume|port"
)
_CAPTURE = frozenset({"versions.fp8debug", "versions.pyarrow", "versions.numba", "versions.duckdb"})
_ON = frozenset({"true", "yes", "on", "1"})
_OFF = frozenset({"", "false", "none", "null", "0", "no", "off", "[]", "{}"})


def by_one_name(facts: Mapping[str, str]) -> dict[str, str]:
    """The same facts under one name each, whoever named them."""
    return {_ALIASES.get(_plain(name), name): value for name, value in facts.items()}


def _plain(name: str) -> str:
    last = name if name.startswith("versions.") else name.rpartition(".")[2]
    return re.sub(r"[^a-z0-9]+", "_", last.lower()).strip("_").removeprefix("argument_")


def kind_of(name: str) -> str:
    """intended | unintended | note: what a difference in this setting is."""
    plain = re.sub(r"[^a-z0-9.]+", "_", name.lower()).strip("_").removeprefix("argument_")
    if _OWN_SWITCH.search(plain):
        return UNINTENDED
    if name.startswith("versions."):
        return NOTE if name in _CAPTURE else UNINTENDED
    if _PRECISION.search(plain):
        return INTENDED
    return NOTE if _NOT_THE_TRAINING.fullmatch(plain) else UNINTENDED


def normalised(value: str | None) -> str | None:
    """What is off and what is not there are the same; 1 and 1.0 too."""
    if value is None or value.strip().lower() in _OFF:
        return None
    try:
        return repr(float(value))
    except ValueError:
        return value.strip().lower()


def says_something(name: str, value: str | None) -> bool:
    """Whether it is a difference that the other one does not give this: a switch that is on, an argument."""
    if name.startswith("versions.") or normalised(value) is None:
        return False
    return name.startswith("argument") or str(value).lower() in _ON


def without_precision(name: str) -> str:
    """`train_fp8.py` and `train_bf16.py` are taken for one script."""
    return re.sub(r"[^a-z0-9]+", "", re.sub(r"mxfp8|nvfp4|float8|fp8|bf16|fp16|fp32", "", name.lower()))
