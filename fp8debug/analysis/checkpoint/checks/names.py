"""Names with numbers in them: which layers and experts a tensor belongs to, and which tensors are its siblings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_NUMBER = re.compile(r"(layer|block|expert)s?_?(\d{1,9})|(\d{1,9})", re.ASCII)
_WORDS = {"layers": "layer", "h": "layer", "blocks": "block", "experts": "expert"}

Numbers = tuple[int, ...]


@lru_cache(maxsize=1 << 17)
def starred(name: str) -> tuple[str, Numbers]:
    """`layers.0.mlp.experts.2.w1` as (`layers.*.mlp.experts.*.w1`, (0, 2)); `layer_3.w` as (`layer_*.w`, (3,)).

    A star that is part of a name is two stars.
    """
    parts, numbers = [], []
    for part in name.split("."):
        found = _NUMBER.fullmatch(part)
        if found is None:
            parts.append(part.replace("*", "**"))
        else:
            digits = found[2] or found[3]
            numbers.append(int(digits))
            parts.append(part.removesuffix(digits) + "*")
    return ".".join(parts), tuple(numbers)


def with_numbers(pattern: str, numbers: Numbers) -> str:
    """The name again that `starred` took apart."""
    left = iter(numbers)
    return re.sub(r"\*\*?", lambda found: "*" if len(found[0]) > 1 else str(next(left)), pattern)


def place_words(pattern: str, numbers: Numbers) -> str:
    """`layer 0 expert 2` for (`model.layers.*.mlp.experts.*.w1`, (0, 2)); empty where the name has no numbers."""
    words = []
    left = iter(numbers)
    parts = pattern.split(".")
    for before, part in zip(["", *parts], parts, strict=False):
        if part.endswith("*") and not part.endswith("**"):
            word = part[:-1].strip("_") or before
            words.append(f"{_WORDS.get(word, word.removesuffix('s').replace('_', ' '))} {next(left)}".strip())
    return " ".join(words)


def ranges_of(numbers: Iterable[int]) -> str:
    """`0-2, 5, 7-9`."""
    texts: list[str] = []
    first = last = None
    for number in [*sorted(numbers), None]:
        if first is not None and last is not None and number != last + 1:
            texts.append(str(first) if first == last else f"{first}-{last}")
            first = None
        if first is None:
            first = number
        last = number
    return ", ".join(texts)


def module_of(name: str) -> str:
    """What holds a tensor: all before the last dot; empty where there is none."""
    return name.rpartition(".")[0]


def ending_of(name: str) -> str:
    """What stands after the last dot."""
    return name.rpartition(".")[2]


def owner_of(scale_name: str) -> str:
    """What a scale belongs to by its name: `a.b` of `a.b.weight_scale` and of `a.b_scale_inv`."""
    ending = ending_of(scale_name)
    if ending.startswith(("weight", "scale", "input")) or "scale" not in ending:
        return module_of(scale_name)
    stem = scale_name[: len(scale_name) - len(ending) + ending.index("scale")].rstrip("_.#")
    return stem or module_of(scale_name)


def wrappers_of(name: str) -> tuple[str, str]:
    """A name as what wraps the model, and the rest: (`model.language_model.`, `layers.0.mlp`)."""
    parts = name.split(".")
    n = 0
    while n < len(parts) - 1 and parts[n] in _WRAPPERS:
        n += 1
    return "".join(f"{part}." for part in parts[:n]), ".".join(parts[n:])


_WRAPPERS = frozenset({
    "model", "module", "language_model", "text_model", "transformer", "base_model", "backbone", "thinker", "llm",
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "diffusion_model", "pipe",
})  # fmt: skip


def is_no_weight(name: str) -> bool:
    """Whether a tensor is called like what a model works on, keys or activations: it may have any magnitude."""
    return _NO_WEIGHT.search(name) is not None


_NO_WEIGHT = re.compile(
    r"cache|(^|[._])(activations?|acts?|hidden_states?|logits?|grad|d?[xy]|[qkv]|kv|quer(y|ies)|keys?|values?|inputs?"
    r"|outputs?)$"
)
