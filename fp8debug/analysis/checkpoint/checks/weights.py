"""Matrices of weights, how large each is, and how large it should be by the others."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isfinite, prod, sqrt

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.checks.names import starred
from fp8debug.analysis.checkpoint.facts import CodeFacts
from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.formats import ELEMENT_FORMATS

FACTOR_OF_SIBLINGS = 64.0
"""Weights of one role differ by less between layers, also dead experts' and those of the first and the last one."""
USUAL = (0.02, 20.0)
"""rms x sqrt(inputs) of the weights of a layer lies in between: 0.2 to 3 in trained language models."""
LARGEST_RMS = 32.0
"""Of a quantised weight, however few inputs it has."""
_FEWEST_SIBLINGS = 3


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix of weights and how large it is."""

    name: str
    role: str
    rms: float
    amax: float
    inputs: int
    quantised: Quantised | None
    facts: CodeFacts | None
    is_unscaled: bool
    """Whether its codes are read as they are: without a scale, or with one of exactly 1."""

    @property
    def limits(self) -> tuple[float, float]:
        """Least and largest rms that is no fault by itself."""
        low, high = (limit / sqrt(max(self.inputs, 1)) for limit in USUAL)
        return low / FACTOR_OF_SIBLINGS, min(high * FACTOR_OF_SIBLINGS, LARGEST_RMS)

    @property
    def are_codes(self) -> bool:
        """Whether codes that were scaled to the range of their format are read as values: no weight is that large."""
        if self.quantised is None:
            return self.amax in (448.0, 240.0, 57344.0) and self.rms > 1
        return self.is_unscaled and self.amax >= ELEMENT_FORMATS[self.quantised.fmt].max / 2

    @property
    def is_usual(self) -> bool:
        """Whether a layer with so many inputs may have such weights."""
        low, high = self.limits
        return low <= self.rms <= high and not self.are_codes


class Expected:
    """What weights should be like: as those of the same role, else as all in the checkpoint, else as any."""

    def __init__(self, weights: list[Weight]) -> None:
        usual = [one for one in weights if one.is_usual]
        by_role: dict[str, list[float]] = defaultdict(list)
        for one in usual:
            by_role[one.role].append(one.rms)
        self._medians = {role: float(np.median(rms)) for role, rms in by_role.items()}
        self._n_usual = {role: len(rms) for role, rms in by_role.items()}
        self._of_all = float(np.median([one.rms * sqrt(one.inputs) for one in usual])) if usual else 1.0

    def has_siblings(self, one: Weight) -> bool:
        """Whether enough others have the same role and are usual."""
        return self._n_usual.get(one.role, 0) - one.is_usual >= _FEWEST_SIBLINGS

    def of(self, one: Weight) -> float:
        """The rms to expect."""
        if self.has_siblings(one):
            return self._medians[one.role]
        return self._of_all / sqrt(max(one.inputs, 1))


def weights_of(subject: Subject) -> list[Weight]:
    """All matrices that hold something; of those in high precision what is named weight."""
    facts, found = subject.facts, []
    do_not_fit = {misfit.tensor for misfit in subject.convention.misfits}
    for one in subject.convention.quantised:
        codes = facts.codes.get(one.name)
        if codes is None or one.name in do_not_fit or not (isfinite(codes.rms) and codes.rms > 0):
            continue
        is_unscaled = _is_unscaled(subject, one)
        amax = codes.largest if is_unscaled else codes.largest * codes.rms / codes.rms_codes
        role = starred(one.module or one.name)[0]
        found.append(Weight(one.name, role, codes.rms, amax, _inputs(one.shape), one, codes, is_unscaled))
    for name in subject.convention.plain:
        plain = facts.plain.get(name)
        shape = subject.store.tensors[name].shape
        if plain is not None and plain.rms > 0 and len(shape) > 1 and name.endswith(".weight"):
            role = starred(name.removesuffix(".weight"))[0]
            found.append(Weight(name, role, plain.rms, plain.amax, _inputs(shape), None, None, False))
    return found


def _inputs(shape: tuple[int, ...]) -> int:
    """What is summed over: K of (..., N, K), all but the first axis of a convolution."""
    return prod(shape[1:]) if len(shape) > 3 else (shape or (1,))[-1]


def _is_unscaled(subject: Subject, one: Quantised) -> bool:
    of_codes = [subject.facts.scales.get(scale.name) for scale in one.scales]
    return all(facts is not None and facts.n_one == facts.n for facts in of_codes)
