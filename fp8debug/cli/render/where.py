"""Where a finding is, and since when, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fp8debug.analysis.diagnosis import Finding, Place
from fp8debug.cli.render.tables import escape
from fp8debug.cli.render.wording import count, listed, step_range
from fp8debug.errors import some

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def where(finding: Finding) -> str:
    """`blocks.*.fc2 x in 4 layers: blocks.0.fc2, blocks.1.fc2, blocks.2.fc2 and 1 more, fprop, under delayed`."""
    parts = [_operands(finding.places), _gemms(finding), _recipes(finding), _ranks(finding)]
    return ", ".join(filter(None, parts))


def since(finding: Finding) -> str:
    """`steps 3 to 40, in 12 of 20 steps`; of several places, the steps of the worst are counted."""
    if finding.first_step is None or finding.last_step is None:
        return ""
    text, worst = step_range(finding.first_step, finding.last_step), finding.worst
    if worst.n_steps is None or finding.first_step == finding.last_step:
        return text
    whose = "" if is_of_one(finding) else "the worst "
    if worst.n_observed_steps is None:
        return f"{text}, {whose}in {count(worst.n_steps, 'step')}"
    under = f" under {escape(worst.recipe)}" if worst.recipe and len({p.recipe for p in finding.places}) > 1 else ""
    return f"{text}, {whose}in {worst.n_steps:,} of {count(worst.n_observed_steps, 'step')}{under}"


def is_of_one(finding: Finding) -> bool:
    """Whether it is about one operand, under whatever recipes."""
    return len({(place.layer, place.tensor, place.gemm, place.rank) for place in finding.places}) == 1


def operand_name(layer: str | None, tensor: str | None) -> str:
    """A tensor of a layer, either of which may not be known, safe to print."""
    return " ".join(escape(word) for word in (layer, tensor) if word)


def _operands(places: Sequence[Place]) -> str:
    found = list(dict.fromkeys((place.layer, place.tensor) for place in places if place.layer or place.tensor))
    if len(found) < 2:
        return "".join(operand_name(*names) for names in found)
    layers = [layer or "" for layer, _ in found]
    tensors = {tensor for _, tensor in found}
    pattern = common_pattern(layers)
    if len(tensors) == 1 and pattern:
        listed_layers = some([escape(layer) for layer in layers])
        return f"{operand_name(pattern, *tensors)} in {len(layers):,} layers: {listed_layers}"
    noun = "layers" if tensors == {None} else "operands"
    return f"{len(found):,} {noun}: {some([operand_name(*names) for names in found])}"


def common_pattern(layers: Sequence[str]) -> str | None:
    """Names that differ in numbers only as one, with `*` for the numbers that differ; None: they differ otherwise."""
    texts = {tuple(_NUMBER.split(layer)) for layer in layers}
    if len(texts) != 1 or not layers:
        return None
    numbers = list(zip(*(_NUMBER.findall(layer) for layer in layers), strict=True))
    shown = [column[0] if len(set(column)) == 1 else "*" for column in numbers]
    (text,) = texts
    return text[0] + "".join(number + rest for number, rest in zip(shown, text[1:], strict=True))


def _gemms(finding: Finding) -> str:
    return listed(_known(place.gemm for place in finding.places))


def _recipes(finding: Finding) -> str:
    recipes = [escape(recipe) for recipe in _known(place.recipe for place in finding.places)]
    if not recipes or (len(recipes) == 1 and f"under {recipes[0]}" in finding.message):
        return ""
    return f"under {some(recipes) if len(recipes) > 3 else listed(recipes)}"


def _ranks(finding: Finding) -> str:
    ranks = sorted({place.rank for place in finding.places if place.rank is not None})
    if not ranks:
        return ""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {some(list(map(str, ranks)))}"


def _known(words: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word))
