"""Sentences about a comparison as a whole: how names were matched, what was left out, what all layers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor
from fp8debug.analysis.checkpoint.reference.matching import Match, Matching
from fp8debug.analysis.checkpoint.reference.naming import stem_of
from fp8debug.analysis.checkpoint.reference.sentences import has_cause
from fp8debug.errors import some


def notes_of(
    matching: Matching, tensors: tuple[ComparedTensor, ...], reference: str, unread: Sequence[str] = ()
) -> tuple[str, ...]:
    """All of them; `unread` are tensors that both have and of which this checkpoint's convention knows no values."""
    not_read = f"{_tensors(len(unread))} not compared, since it is not known here how to read them: {some(unread)}."
    return (*_matched(matching), *_left_out(matching, reference), *((not_read,) if unread else ()), *_shared(tensors))


def _matched(matching: Matching) -> Iterator[str]:
    by_how: dict[str, list[Match]] = {}
    for one in matching.matches:
        by_how.setdefault(one.how, []).append(one)
    texts = {
        "renamed": "{n} with another name in the reference: {example}.",
        "fused": "{n} made of parts, or parts, of fused or stacked tensors of the reference: {example}.",
        "transposed": "{n} stored transposed in the reference: {example}.",
        "reshaped": "{n} of another shape in the reference, compared in row-major order: {example}.",
    }
    for how, text in texts.items():
        if found := by_how.get(how):
            example = f"{found[0].tensor.name} is {found[0].reference_name}"
            yield text.format(n=_tensors(len(found)), example=example)
    changed = [*by_how.get("transposed", []), *by_how.get("reshaped", []), *by_how.get("rows", [])]
    renamed = [one for one in changed if stem_of(one.tensor) != stem_of(one.sources[0].tensor)]
    if renamed and "renamed" not in by_how:
        yield f"{renamed[0].tensor.name} is {renamed[0].reference_name} in the reference."
    for one in by_how.get("rows", []):
        theirs = one.sources[0].tensor.lines
        yield (
            f"{one.tensor.name} has {one.tensor.lines:,} rows, the reference {theirs:,}: the first {one.lines:,} were "
            "compared; those beyond are taken for padding."
        )


def _left_out(matching: Matching, reference: str) -> Iterator[str]:
    if matching.missing:
        yield f"{_tensors(len(matching.missing))} not in {reference}: {some(matching.missing)}."
    if matching.extra:
        yield f"{_tensors(len(matching.extra))} of the reference not in this checkpoint: {some(matching.extra)}."
    stacks = [ours.name for ours, other in matching.misshapen if is_turned_stack(ours.shape, other.shape)]
    if stacks:
        yield (
            f"{_tensors(len(stacks))} not compared, since stacked matrices are stored transposed in the "
            f"reference: {some(stacks)}."
        )
    turned = [ours.name for ours, other in matching.misshapen if is_turned_code(ours.shape, other)]
    if turned:
        yield (
            f"{_tensors(len(turned))} not compared, since the reference is quantised and stored transposed: "
            f"{some(turned)}."
        )


def _shared(tensors: tuple[ComparedTensor, ...]) -> Iterator[str]:
    different = [tensor for tensor in tensors if tensor.verdict == "different"]
    causes = Counter(tensor.hypotheses[0].name for tensor in different if has_cause(tensor))
    for cause, n in causes.most_common():
        if n > 1:
            example = next(t for t in different if t.hypotheses and t.hypotheses[0].name == cause)
            yield (
                f"The same cause explains {n:,} of the {len(different):,} tensors that differ ({cause}): "
                f"for example, {example.hypotheses[0].message}."
            )


def is_turned_stack(ours: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """Whether both are stacks of matrices, those of one side transposed."""
    return len(ours) == len(theirs) == 3 and ours[0] == theirs[0] and ours[1:] == theirs[:0:-1]


def is_turned_code(ours: tuple[int, ...], other: object) -> bool:
    """Whether a quantised tensor of the reference is the transposed one."""
    return not isinstance(other, Stored) and len(ours) == 2 and ours == getattr(other, "shape", ())[::-1]


def _tensors(n: int) -> str:
    return "1 tensor" if n == 1 else f"{n:,} tensors"
