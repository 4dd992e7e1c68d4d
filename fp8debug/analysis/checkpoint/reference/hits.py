"""What of a comparison is a finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor, Comparison
from fp8debug.analysis.checkpoint.reference.matching import Matching
from fp8debug.analysis.checkpoint.reference.notes import is_turned_code, is_turned_stack
from fp8debug.analysis.checkpoint.reference.sentences import (
    brief,
    factor_of,
    has_cause,
    is_flushed,
    numbers_of,
    sentence,
)

_UNIFORM = 0.7
"""Share of the quantised tensors that have to carry a second rounding for it to be a change of format."""
_SECOND_ROUNDING_DB = 5.0
"""More than a second rounding to the same number of bits costs."""
_CLIPPING_DB = 6.0
"""What clipping may cost that was chosen: as much as half the format's precision."""
_SAME_DB = 0.1
"""Between what is there and what one rounding of the reference gives on a sample."""


def hits_of(subject: Subject, matching: Matching, comparison: Comparison) -> list[Hit]:
    """All of them."""
    quantised = {one.name: one for one in subject.convention.quantised}
    return [
        *_different(subject, matching, comparison),
        *_requantised(comparison, quantised),
        *_shapes(matching, comparison),
    ]


def once_each(hits: Iterable[Hit]) -> list[Hit]:
    """Of several references, each fault of a tensor once: as the first one shows it."""
    kept: dict[tuple[str, str], Hit] = {}
    for hit in hits:
        kept.setdefault((hit.check, hit.place.tensor), hit)
    return list(kept.values())


def _different(subject: Subject, matching: Matching, comparison: Comparison) -> Iterator[Hit]:
    quantised = {one.name: one for one in subject.convention.quantised}
    misfits = {one.tensor: one for one in subject.convention.misfits}
    lines = {one.tensor.name: one.lines for one in matching.matches}
    for tensor in comparison.tensors:
        if tensor.verdict != "different":
            continue
        odd = _odd_rows(subject, tensor, lines[tensor.name]) if tensor.n_nonfinite else ""
        ours, codes = quantised.get(tensor.name), subject.facts.codes.get(tensor.name)
        text = sentence(tensor, ours, codes, odd, misfits.get(tensor.name))
        place = CheckPlace(tensor.name, text, factor_of(tensor), numbers_of(tensor), brief(tensor))
        is_mild = is_flushed(tensor, ours, codes) if not has_cause(tensor) else _is_calibrated(tensor)
        severity = "warning" if is_mild else None
        yield Hit("values_differ", place, len(comparison.tensors), severity, _lost_db(tensor))


def _is_calibrated(tensor: ComparedTensor) -> bool:
    """Whether a scale clips a few values, as calibration does on purpose."""
    return tensor.hypotheses[0].name == "clipped" and not tensor.n_nonfinite and _lost_db(tensor) < _CLIPPING_DB


def _odd_rows(subject: Subject, tensor: ComparedTensor, lines: int) -> str:
    """Rows, of those that were compared, in which this checkpoint has something that is not finite."""
    codes, plain = subject.facts.codes.get(tensor.name), subject.facts.plain.get(tensor.name)
    found = codes.nan_lines if codes is not None else plain.nonfinite_lines if plain is not None else None
    kept = [(first, min(last, lines - 1)) for first, last in found.ranges if first < lines] if found else []
    if not kept:
        return ""
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in kept[:3])
    more = ", ..." if len(kept) > 3 else ""
    return f" (row {shown})" if not more and len(kept) == 1 and kept[0][0] == kept[0][1] else f" (rows {shown}{more})"


def _requantised(comparison: Comparison, quantised: dict[str, Quantised]) -> Iterator[Hit]:
    codes = [tensor for tensor in comparison.tensors if tensor.name in quantised]
    again = [tensor for tensor in codes if tensor.verdict == "requantised"]
    if not again:
        return
    if len(again) >= _UNIFORM * len(codes) and all(_lost_db(tensor) <= _SECOND_ROUNDING_DB for tensor in again):
        yield Hit("format_change", _all_of(again, comparison.reference))
        return
    for tensor in again:
        text = (
            f"{tensor.name}: SQNR {tensor.sqnr_db or 0:.1f} dB, where one rounding with its scales gives "
            f"{tensor.healthy_sqnr_db or 0:.1f} dB; {tensor.nearest or 0:.0%} of its codes are the nearest ones."
        )
        if has_cause(tensor):
            text += f" Best explanation: {tensor.hypotheses[0].message}."
        place = CheckPlace(tensor.name, text, None, numbers_of(tensor))
        yield Hit("second_rounding", place, of=len(codes), weight=_lost_db(tensor))


def _lost_db(tensor: ComparedTensor) -> float:
    return (tensor.healthy_sqnr_db or 0.0) - (tensor.sqnr_db or 0.0)


def _all_of(tensors: list[ComparedTensor], reference: str) -> CheckPlace:
    """One place for a loss that all layers share."""
    sqnrs = [tensor.sqnr_db for tensor in tensors if tensor.sqnr_db is not None]
    rels = [tensor.rel_l2 for tensor in tensors if tensor.rel_l2 is not None]
    once = [tensor.healthy_sqnr_db for tensor in tensors if tensor.healthy_sqnr_db is not None]
    lost = f"SQNR {_span(sqnrs, '.1f')} dB (relative error {_span(rels, '.2g')}) against {reference}"
    if max(abs(sqnr - one) for sqnr, one in zip(sqnrs, once, strict=True)) < _SAME_DB:
        text = f"{lost}, whose quantised values were rounded to these codes: all layers alike, none stands out."
    else:
        gives = f"one rounding with these scales gives {_span(once, '.1f')} dB"
        text = f"{lost}, where {gives}: all layers alike, none stands out."
    if has_cause(tensors[0]):
        text += f" Best explanation: {tensors[0].hypotheses[0].message}."
    name = tensors[0].name if len(tensors) == 1 else f"{tensors[0].name} and {len(tensors) - 1:,} more"
    numbers: dict[str, float | int | str | None] = {
        "n": len(tensors),
        "sqnr_db_min": min(sqnrs),
        "sqnr_db_max": max(sqnrs),
        "rel_l2_max": max(rels),
    }
    return CheckPlace(name, text, None, numbers)


def _span(numbers: list[float], form: str) -> str:
    low, high = format(min(numbers), form), format(max(numbers), form)
    return low if low == high else f"{low} to {high}"


def _shapes(matching: Matching, comparison: Comparison) -> Iterator[Hit]:
    for ours, other in matching.misshapen:
        if is_turned_stack(ours.shape, other.shape) or is_turned_code(ours.shape, other):
            continue
        text = f"{ours.name} has the shape {list(ours.shape)}, {other.name} of the reference {list(other.shape)}."
        yield Hit("shape_differs", CheckPlace(ours.name, text), of=len(comparison.tensors) + len(matching.misshapen))
    for one in matching.matches:
        theirs = one.sources[0].tensor.lines
        if one.how == "rows" and one.tensor.lines < theirs:
            text = (
                f"{one.tensor.name} has {one.tensor.lines:,} rows, the reference {theirs:,}: the last "
                f"{theirs - one.tensor.lines:,} are missing, unless they are padding."
            )
            yield Hit("shape_differs", CheckPlace(one.tensor.name, text), severity="warning")
