"""Which weights of a checkpoint are quantised: those of Linear layers, by name, shape and configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.errors import UsageError

HIGH_PRECISION = ("F64", "F32", "F16", "BF16")
"""dtypes of what can be quantised."""

_NO_LINEAR = {
    "an embedding": r"embed|(^|[._])(wte|wpe)($|[._])|vocab|relative_attention_bias",
    "a norm": r"norm|(^|[._])ln($|[._0-9])",
    "an output head": r"lm_head|(^|\.)(head|classifier|score|output_projection)$",
    "a router": r"router|(^|\.)gate$|shared_expert_gate$",
    "a convolution": r"conv",
    "a low-rank adapter": r"lora_",
}
"""Words of module names that are kept in high precision unless they are asked for."""
_NEVER_LINEAR = ("an embedding", "a norm", "a convolution")


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that stays as it is."""

    name: str
    why: str
    """`an embedding`, `a norm`, ..."""
    is_linear: bool = True
    """Whether it could be the weight of a Linear, so that a configuration has to say that it is not quantised."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A tensor that is quantised."""

    stored: Stored
    module: str
    """Its name without `.weight`; of a stack of experts, whose parameters have names of their own, the whole name."""


def choose(
    store: Store,
    *,
    include: str | None = None,
    exclude: str | None = None,
    multiples: tuple[int, int] = (1, 1),
    has_stacks: bool = True,
) -> tuple[tuple[Chosen, ...], tuple[Kept, ...]]:
    """Tell what is quantised from what is kept, in the order of the files.

    Args:
        store: a checkpoint in high precision.
        include: regex (re.search) of module names; only these are quantised, whatever kind of layer they are.
        exclude: regex of module names that are kept.
        multiples: lines of a matrix, and elements of a line, must be multiples of these.
        has_stacks: whether several matrices may be one tensor.

    Raises:
        UsageError: a regex does not compile, or no tensor is left to be quantised.
    """
    wanted, unwanted = compiled("--include", include), compiled("--exclude", exclude)
    vocabulary = _vocabulary(store.configs)
    chosen: list[Chosen] = []
    kept: list[Kept] = []
    for name, stored in store.tensors.items():
        module = name.removesuffix(".weight")
        why = _no_matrix(name, stored)
        if why is None and unwanted is not None and unwanted.search(module):
            why = "--exclude names it"
        elif why is None and wanted is not None:
            why = None if wanted.search(module) else "--include does not name it"
        elif why is None:
            why = _no_linear(module, stored, vocabulary)
        if why is None:
            why = "a stack of matrices" if len(stored.shape) > 2 and not has_stacks else _no_multiple(stored, multiples)
        if why is None:
            chosen.append(Chosen(stored, module))
        else:
            kept.append(Kept(name, why, is_linear=_no_matrix(name, stored) is None and why not in _NEVER_LINEAR))
    if not chosen:
        raise UsageError(_nothing(store, include, kept))
    return tuple(chosen), tuple(kept)


def compiled(option: str, pattern: str | None) -> re.Pattern[str] | None:
    """The regex of an option.

    Raises:
        UsageError: it does not compile.
    """
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{option} {pattern!r} is no regular expression: {error}") from error


def _no_matrix(name: str, stored: Stored) -> str | None:
    """Why a tensor cannot be the weight of a Linear, from its dtype and shape."""
    if stored.dtype not in HIGH_PRECISION:
        return f"{stored.dtype} is no high precision"
    if stored.n == 0:
        return "it has no elements"
    is_stack = len(stored.shape) == 3 and "expert" in name
    if not is_stack and (len(stored.shape) != 2 or not name.endswith(".weight")):
        return "no weight of a Linear"
    return None


def _no_linear(module: str, stored: Stored, vocabulary: int | None) -> str | None:
    lowered = module.lower()
    for kind, words in _NO_LINEAR.items():
        if re.search(words, lowered):
            return kind
    # Within a numbered layer it is a coincidence.
    if vocabulary is not None and vocabulary in stored.shape and not re.search(r"(^|\.)\d+\.", module):
        return "as long as the vocabulary"
    return None


def _no_multiple(stored: Stored, multiples: tuple[int, int]) -> str | None:
    if stored.length % multiples[1]:
        return f"lines of {stored.length:,} elements are not whole blocks of {multiples[1]}"
    if stored.shape[-2] % multiples[0]:
        return f"{stored.shape[-2]:,} lines are not whole blocks of {multiples[0]}"
    return None


def _vocabulary(configs: Mapping[str, Mapping[str, Any]]) -> int | None:
    config = configs.get("config.json", {})
    text = config.get("text_config")
    size = config.get("vocab_size", text.get("vocab_size") if isinstance(text, Mapping) else None)
    return size if isinstance(size, int) and size > 0 else None


def _nothing(store: Store, include: str | None, kept: list[Kept]) -> str:
    counted: dict[str, int] = {}
    for one in kept:
        counted[one.why] = counted.get(one.why, 0) + 1
    worst = sorted(counted.items(), key=lambda item: -item[1])[:3]
    reasons = "; ".join(f"{n:,}: {why}" for why, n in worst) or "it holds no tensors"
    hint = "give another --include" if include is not None else "name the layers with --include"
    return (
        f"nothing in {store.path} would be quantised ({reasons}); expected weights of Linear layers in "
        f"{', '.join(HIGH_PRECISION)}; {hint}"
    )
