"""What sets two trainings apart beside their precision: with two such differences no layer can be blamed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.compare.curve import Curve, Floats, matched
from fp8debug.analysis.compare.names import (
    INTENDED,
    NOTE,
    UNINTENDED,
    by_one_name,
    kind_of,
    normalised,
    says_something,
    without_precision,
)

SAME = 1e-6
"""Relative difference up to which learning rates and tokens are the same."""

CLOSE_ENDS = 0.01
"""Relative difference of the smallest and largest magnitude up to which two first inputs differ by rounding alone."""
FIRST_INPUT = "first input"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which the run differs from the baseline."""

    name: str
    baseline: str
    """`not given` where only the other one has it."""
    run: str
    kind: str
    """intended: the precision, which is the experiment | unintended | note: it cannot change the numbers, or little"""


@dataclass(frozen=True, slots=True)
class Comparability:
    """Whether a difference of the losses can be put down to the precision."""

    level: str
    """comparable | one_difference | not_comparable: two or more | unknown: of one of them only numbers are known"""
    differences: tuple[Difference, ...]
    """Those that were not intended first."""
    same: tuple[str, ...]
    """What was compared and is the same."""

    @property
    def unintended(self) -> tuple[Difference, ...]:
        """Those that count."""
        return tuple(difference for difference in self.differences if difference.kind == UNINTENDED)


def comparability(baseline: Curve, run: Curve) -> Comparability:
    """Compare what is known of two trainings."""
    same: list[str] = []
    found = [*_of_series(baseline, run, same), *_of_facts(baseline, run, same), *_of_numbering(baseline, run)]
    distinct = _one_a_cause(found)
    count = sum(difference.kind == UNINTENDED for difference in distinct)
    if count:
        level = "one_difference" if count == 1 else "not_comparable"
    else:
        level = "unknown" if baseline.facts is None or run.facts is None else "comparable"
    order = (UNINTENDED, INTENDED, NOTE)
    return Comparability(
        level, tuple(sorted(distinct, key=lambda difference: order.index(difference.kind))), tuple(dict.fromkeys(same))
    )


def _of_series(baseline: Curve, run: Curve, same: list[str]) -> Iterator[Difference]:
    """Learning rates and tokens of the steps that both have."""
    ours, theirs = matched(baseline, run)
    for name, first, second in (
        ("learning rate", baseline.lr, run.lr),
        ("tokens a step", baseline.tokens, run.tokens),
    ):
        if first is None or second is None:
            continue
        place, n_known = _first_difference(first[ours], second[theirs])
        if place is not None:
            step = int(baseline.steps[ours[place]])
            yield Difference(
                name, f"{first[ours[place]]:.6g} at step {step}", f"{second[theirs[place]]:.6g}", UNINTENDED
            )
        elif n_known:
            same.append(name)


def _first_difference(first: Floats, second: Floats) -> tuple[int | None, int]:
    known = np.isfinite(first) & np.isfinite(second)
    differs = known & (np.abs(first - second) > SAME * np.maximum(np.abs(first), np.abs(second)))
    return (int(np.argmax(differs)) if differs.any() else None), int(known.sum())


def _of_facts(baseline: Curve, run: Curve, same: list[str]) -> Iterator[Difference]:
    if baseline.facts is None or run.facts is None:
        return
    first, second = by_one_name(baseline.facts), by_one_name(run.facts)
    # A run directory and a free manifest name different things: what only one of them has says nothing.
    is_alike = (baseline.kind == "run") == (run.kind == "run")
    for name in dict.fromkeys([*first, *second]):
        kind = kind_of(name)
        ours, theirs = first.get(name), second.get(name)
        if name == FIRST_INPUT:
            yield from _of_first_inputs(ours, theirs, same)
            continue
        if normalised(ours) == normalised(theirs):
            if kind == UNINTENDED and ours is not None:
                same.append(name)
        elif ours is not None and theirs is not None:
            if name == "script":
                kind = INTENDED if without_precision(ours) == without_precision(theirs) else UNINTENDED
            yield _difference(name, ours, theirs, kind)
        elif kind == INTENDED or (is_alike and says_something(name, ours or theirs)):
            yield _difference(name, ours or "not given", theirs or "not given", kind)


def _of_first_inputs(ours: str | None, theirs: str | None, same: list[str]) -> Iterator[Difference]:
    """What the first layer was given before any step: the same data through the same weights, or not."""
    if ours is None or theirs is None:
        return
    first, second = json.loads(ours), json.loads(theirs)
    if first["of"] != second["of"]:
        return
    if first["checksum"] == second["checksum"]:
        same.append("first input (data and initial weights)")
        return
    # Other kernels round otherwise, but move neither end of the values.
    is_close = all(math.isclose(first[end] or 0, second[end] or 0, rel_tol=CLOSE_ENDS) for end in ("amin", "amax"))
    here, there = (f"checksum {found['checksum']:x}, amax {found['amax']:.6g}" for found in (first, second))
    if is_close:
        yield Difference("last bits of the first input", here, there, NOTE)
    else:
        yield Difference("data or initial weights (first input)", here, there, UNINTENDED)


def _difference(name: str, ours: str, theirs: str, kind: str) -> Difference:
    if name == "layers":
        return Difference("layers of the model", *_shapes(ours, theirs), kind)
    return Difference(name, ours, theirs, kind)


def _shapes(ours: str, theirs: str) -> tuple[str, str]:
    first, second = set(ours.split("\n")), set(theirs.split("\n"))
    return (f"{len(first)}, of which {len(first - second)} are only here",
            f"{len(second)}, of which {len(second - first)} are only here")  # fmt: skip


def _of_numbering(baseline: Curve, run: Curve) -> Iterator[Difference]:
    if len(baseline) != len(run):
        yield Difference("steps", f"{len(baseline):,}", f"{len(run):,}", NOTE)
    if baseline.steps[0] != run.steps[0] and min(baseline.steps[0], run.steps[0]) in (0, 1):
        yield Difference("first step", str(baseline.steps[0]), str(run.steps[0]), NOTE)


def _one_a_cause(found: list[Difference]) -> list[Difference]:
    """The rate at a step and the argument that sets it are one difference; the batch and its tokens too."""
    by_cause: dict[str, Difference] = {}
    for difference in found:
        cause = "tokens a step" if difference.name == "batch size" else difference.name
        by_cause.setdefault(cause, difference)
    return list(by_cause.values())
