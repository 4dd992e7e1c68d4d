"""Names of tensors as two checkpoints of one model may spell them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from fp8debug.analysis.checkpoint.records import Quantised, Stored

WRAPPERS = ("module.", "base_model.model.", "language_model.", "model.")
"""What frameworks put before a name."""
INNER_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")
"""Segments that they put into it."""
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "qkv": ("q", "k", "v"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "w13": ("w1", "w3"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}
"""Last segment of a fused matrix, and those of the ones that are stacked in it, first lines first."""


def stem_of(tensor: Quantised | Stored) -> str:
    """The name without what says that it is the weight."""
    return tensor.module if isinstance(tensor, Quantised) else tensor.name.removesuffix(".weight")


def key_of(tensor: Quantised | Stored) -> str:
    """The stem without wrappers inside of it."""
    key = stem_of(tensor)
    if any(wrapper in key for wrapper in INNER_WRAPPERS):
        return ".".join(segment for segment in key.split(".") if segment not in INNER_WRAPPERS)
    return key


def bare(key: str) -> str:
    """The key with no wrapper before it."""
    wrapper = next((wrapper for wrapper in WRAPPERS if key.startswith(wrapper)), None)
    return key if wrapper is None else bare(key[len(wrapper) :])


def renamed(ours: Iterable[str], theirs: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """For each key of both sides a name that is the same on both where they mean the same.

    Wrappers go first; where a prefix is left that only one side has, the one that makes most names equal is taken off.
    """
    our_keys, their_keys = list(ours), list(theirs)
    ambiguous = {name for keys in (our_keys, their_keys) for name, n in Counter(map(bare, keys)).items() if n > 1}
    left, right = (
        {key: key if bare(key) in ambiguous else bare(key) for key in keys} for keys in (our_keys, their_keys)
    )
    right_only = _without_prefix(right, set(left.values()))
    return _without_prefix(left, set(right_only.values())), right_only


def _without_prefix(names: Mapping[str, str], others: set[str]) -> dict[str, str]:
    """Names less the prefix whose loss makes most of them be among the others."""
    prefixes: Counter[str] = Counter()
    for name in names.values():
        if name in others:
            continue
        start = name.find(".") + 1
        while start:
            # A bare `weight` or `0` is in every model: two segments at least have to be the same.
            if name[start:] in others and "." in name[start:]:
                prefixes[name[:start]] += 1
            start = name.find(".", start) + 1
    if not prefixes:
        return dict(names)
    prefix = prefixes.most_common(1)[0][0]
    # What stands outside of the wrapper, such as lm_head, has the prefix without it.
    shorter = [prefix, *(prefix.removesuffix(wrapper) for wrapper in WRAPPERS if prefix.endswith(wrapper))]
    taken = set(names.values())
    return {key: _shortened(name, shorter, others - taken) for key, name in names.items()}


def _shortened(name: str, prefixes: Sequence[str], others: Set[str]) -> str:
    """The name without the first of the prefixes that leaves one of the others; without the longest if none does."""
    found = [name[len(prefix) :] for prefix in prefixes if prefix and name.startswith(prefix)]
    return next((short for short in found if short in others), found[0] if found else name)


def parts_of(key: str) -> tuple[str, ...]:
    """Keys of the matrices that are stacked in a fused one; empty: it is none."""
    parent, _, last = key.rpartition(".")
    return tuple(f"{parent}.{part}" if parent else part for part in FUSED.get(last, ()))


def fused_of(key: str) -> tuple[str, tuple[str, ...]] | None:
    """Key of the fused matrix that may hold this one, and the keys of those before it in there."""
    parent, dot, last = key.rpartition(".")
    for fused, parts in FUSED.items():
        if last in parts:
            before = parts[: parts.index(last)]
            return f"{parent}{dot}{fused}", tuple(f"{parent}{dot}{part}" for part in before)
    return None


def expert_key(key: str, expert: int) -> str:
    """Key of one of the experts that are stacked in a tensor: `mlp.experts.w1` and 3 to `mlp.experts.3.w1`."""
    parent, _, last = key.rpartition(".")
    return f"{parent}.{expert}.{last}"
