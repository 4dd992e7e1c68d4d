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
    said: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for one in looked_at:
        rule, message = _rule(one, store, reference_store)
        if message is not None:
            said.setdefault(rule, []).append((one.tensor.name, message))
    for found in said.values():
        name, message = found[0]
        others = f", and alike in {len(found) - 1} more of {len(looked_at)} looked at" if len(found) > 1 else ""
        yield f"{name}: {message}{others}."


def _can_tell(one: Match) -> bool:
    return (
        isinstance(one.tensor, Quantised)
        and one.tensor.grid_scale is not None
        and all(isinstance(source.tensor, Stored) for source in one.sources)
        and one.lines == one.tensor.lines
    )


def _rule(one: Match, store: Store, reference_store: Store) -> tuple[tuple[str, ...], str | None]:
    pair = pair_of(one, store, reference_store)
    rounding = name_mx_rounding(pair)
    if rounding is not None:
        return rounding.modes, rounding.message if rounding.modes else None
    rule = name_scale_rule(pair)
    if rule is None or not rule.rules:
        return (), None
    return rule.rules, rule.message
