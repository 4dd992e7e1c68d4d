"""How the writer of a checkpoint made its scales, told from the reference: the rule, and the rounding of exponents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8debug.analysis.checkpoint.records import Quantised, Stored
from fp8debug.analysis.checkpoint.reference.hypotheses import name_mx_rounding, name_scale_rule
from fp8debug.analysis.checkpoint.reference.matching import Match, pair_of
from fp8debug.analysis.checkpoint.store import Store

_LOOKED_AT = 8
"""Tensors, evenly spaced: a writer has one rule."""


def writer_notes(matches: Sequence[Match], store: Store, reference_store: Store) -> Iterator[str]:
    """Sentences about the rule that scales were made by; nothing where the reference is quantised itself."""
    fitting = [one for one in matches if _can_tell(one)]
    looked_at = fitting[:: max(1, len(fitting) // _LOOKED_AT)][:_LOOKED_AT]
    told = [(one.tensor.name, *_rule(one, store, reference_store)) for one in looked_at]
    for name, message, n in _alike([(name, rules, message) for name, rules, message in told if rules]):
        others = f", and alike in {n - 1:,} more of {len(looked_at):,} looked at" if n > 1 else ""
        yield f"{name}: {message}{others}."


def _alike(told: list[tuple[str, tuple[str, ...], str]]) -> Iterator[tuple[str, str, int]]:
    """Name, sentence and number of tensors that may have one rule; the clearest of them stands for all."""
    left = sorted(told, key=lambda one: len(one[1]))
    while left:
        name, rules, message = left[0]
        yield name, message, sum(bool({*rules} & {*others}) for _, others, _ in left)
        left = [one for one in left if not {*rules} & {*one[1]}]


def _can_tell(one: Match) -> bool:
    return (
        isinstance(one.tensor, Quantised)
        and one.tensor.grid_scale is not None
        and all(isinstance(source.tensor, Stored) for source in one.sources)
        and one.lines == one.tensor.lines
    )


def _rule(one: Match, store: Store, reference_store: Store) -> tuple[tuple[str, ...], str]:
    """Rules that fit, and the sentence about them; none where nothing is known."""
    pair = pair_of(one, store, reference_store)
    rounding = name_mx_rounding(pair)
    if rounding is not None:
        return rounding.modes, rounding.message
    rule = name_scale_rule(pair)
    return (rule.rules, rule.message) if rule is not None else ((), "")
