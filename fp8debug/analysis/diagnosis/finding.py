"""What is found, as records."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.displayed import Displayed

SEVERITIES = ("error", "warning", "watch", "note")
"""Worst first. error: wrong whatever the loss does | warning: harmful as a rule | watch: unusual, effect unknown |
note: good to know."""
CONFIDENCES = ("certain", "likely", "not_enough_evidence")
"""certain: it can be read off what was recorded | likely: beyond what healthy trainings show | not_enough_evidence: it
may be so, and `needs` says what to record to know."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rule hit, and when; None: the rule does not look at it."""

    layer: str | None
    tensor: str | None
    gemm: str | None
    recipe: str | None
    rank: int | None
    first_step: int | None
    last_step: int | None
    n_steps: int | None
    """Steps that hit, of `n_observed_steps` that could have."""
    n_observed_steps: int | None
    db_lost: float | None
    """SQNR lost there, dB; infinite for what is not finite."""
    message: str
    """The rule's sentence with the numbers of this place."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number of the worst place, with what it is in a healthy run beside it."""

    title: str
    value: str
    healthy: str


@dataclass(frozen=True, slots=True)
class Finding(Displayed):
    """One cause, wherever it shows."""

    rule: str
    severity: str
    """One of SEVERITIES."""
    confidence: str
    """One of CONFIDENCES."""
    message: str
    """The sentence of the worst place."""
    advice: str
    """What to do about it."""
    needs: str | None
    """What to record to be sure, where that is not known."""
    evidence: tuple[Evidence, ...]
    places: tuple[Place, ...]
    """One an operand (or GEMM, or rank), worst first."""
    page: str = ""
    """Where the rule is explained."""
    problems: tuple[str, ...] = ()
    """Kinds of the report's problems that it tells."""

    @property
    def worst(self) -> Place:
        """The place that ranks the finding."""
        return self.places[0]

    @property
    def first_step(self) -> int | None:
        """First step at which it shows anywhere."""
        return min((place.first_step for place in self.places if place.first_step is not None), default=None)

    @property
    def last_step(self) -> int | None:
        """Last step at which it shows anywhere."""
        return max((place.last_step for place in self.places if place.last_step is not None), default=None)

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers it is about, worst first."""
        return tuple(dict.fromkeys(place.layer for place in self.places if place.layer is not None))
