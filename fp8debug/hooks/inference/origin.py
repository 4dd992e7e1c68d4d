"""Where the difference of the outputs arises: told by keeping layers in high precision and looking at what is left.

A layer's own error does not say what becomes of it: residual paths absorb, others amplify. So layers are kept in high
precision, one by one (all of a small model, of a large one those that err most), the worst together, and as families of
layers of one name; the noise that goes away with them is theirs. They are named when that is more than an even spread
would give them and they err more than the other layers do: the last layer of a healthy model takes a large share too.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.hooks.inference.noise import Noise
from fp8debug.hooks.inference.outputs import difference

if TYPE_CHECKING:
    from fp8debug.hooks.inference.passes import Reference, Subject

ALL_TRIED = 24
"""Up to so many layers, each is tried by itself."""
N_CANDIDATES = 3
N_FAMILIES = 2
TIMES_EVEN = 3.0
"""A group stands out when its share of the noise is so many times that of as many layers of an even spread ..."""
LEAST_SHARE, MOST_SHARE = 0.25, 0.75
"""... and at least this; with few layers, where even shares are large, this is enough."""
ERRS_MORE_DB = 3.0
"""How far the own SQNR of a group's layers is below the median of the others, at least."""
_MOSTLY = 0.8


@dataclass(frozen=True, slots=True)
class Trial:
    """Some layers kept in high precision, and what that did."""

    layers: tuple[str, ...]
    share: float
    """Share of the outputs' noise that went away; below 0: it grew."""
    sqnr_db: float | None
    """SQNR of the outputs then; None: no noise was left."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The verdict."""

    verdict: str
    """layers: they make the difference | spread: none stands out; `layers` is the one that takes most | none: there is
    no difference | nonfinite: the first layer whose output has NaN or Inf that the reference has not"""
    layers: tuple[str, ...] = ()
    operand: str | None = None
    """x | w: which of the two makes most of these layers' own error; None: both, or unknown."""
    trial: Trial | None = None
    """What keeping them in high precision does."""
    own_db: float | None = None
    """Own SQNR of the worst of them."""
    median_db: float | None = None
    """Median of the own SQNR over all other layers."""
    tried: tuple[Trial, ...] = ()


def find_origin(
    subject: Subject, reference: Reference, plan: EmulationPlan, total: Noise, nonfinite: str | None
) -> Origin:
    """Find the layers that make the difference.

    Args:
        plan: what is emulated.
        total: noise of the outputs under it.
        nonfinite: first layer in whose output a value was lost to NaN or Inf.
    """
    if nonfinite is not None:
        return Origin("nonfinite", (nonfinite,))
    own = {name: noise for name, noise in reference.own["all"].items() if not plan.keeps(name)}
    if not total.power:
        return Origin("none")
    if len(own) == 1:
        return Origin("layers", tuple(own), _operand(reference, tuple(own)), own_db=own[next(iter(own))].sqnr_db)
    trials = [_try(subject, reference, plan, group, total) for group in _groups(own)]
    standing = [
        trial
        for trial in trials
        if trial.share >= _needed(len(trial.layers), len(own)) and _err_more(own, trial.layers)
    ]
    if standing:
        best = min(standing, key=lambda trial: (len(trial.layers), -trial.share))
    else:
        best = max((trial for trial in trials if len(trial.layers) == 1), key=lambda trial: trial.share)
    return Origin(
        "layers" if standing else "spread",
        best.layers,
        _operand(reference, best.layers),
        best,
        min((db for name in best.layers if (db := own[name].sqnr_db) is not None), default=None),
        _median_db(own, best.layers),
        tuple(trials),
    )


def _try(subject: Subject, reference: Reference, plan: EmulationPlan, layers: Sequence[str], total: Noise) -> Trial:
    kept = tuple(re.compile(f"^{re.escape(name)}$") for name in layers)
    outputs, _ = subject.emulated(replace(plan, keep=(*plan.keep, *kept)))
    left = difference(reference.outputs, outputs).noise
    return Trial(tuple(layers), 1 - left.power / total.power, left.sqnr_db)


def _groups(own: dict[str, Noise]) -> list[tuple[str, ...]]:
    """Groups to try: single layers, the worst of them together, and the families that err most."""
    ordered = sorted(own, key=lambda name: -own[name].relative)
    worst = ordered[:N_CANDIDATES]
    groups: list[tuple[str, ...]] = [(name,) for name in (ordered if len(own) <= ALL_TRIED else worst)]
    if len(worst) < len(own):
        groups.append(tuple(worst))
    families: dict[str, list[str]] = defaultdict(list)
    for name in own:
        families[re.sub(r"\d+", "*", name)].append(name)
    several = [members for members in families.values() if 1 < len(members) < len(own)]
    several.sort(key=lambda members: -sum(own[name].relative for name in members) / len(members))
    return [*dict.fromkeys([*groups, *(tuple(members) for members in several[:N_FAMILIES])])]


def _err_more(own: dict[str, Noise], layers: Sequence[str]) -> bool:
    """Whether most of these layers err more than the others do."""
    others, theirs = _median_db(own, layers), [own[name].sqnr_db for name in layers]
    known = [db for db in theirs if db is not None]
    return others is None or (bool(known) and statistics.median(known) <= others - ERRS_MORE_DB)


def _median_db(own: dict[str, Noise], layers: Sequence[str]) -> float | None:
    """Median of the own SQNR over all layers but these; None: no other has any noise."""
    others = [noise.sqnr_db for name, noise in own.items() if name not in layers and noise.sqnr_db is not None]
    return statistics.median(others) if others else None


def _needed(n_layers: int, n_all: int) -> float:
    """Share of the noise from which on `n_layers` of `n_all` stand out."""
    even = n_layers / n_all
    most = max(MOST_SHARE, (1 + even) / 2)
    return min(max(TIMES_EVEN * even, LEAST_SHARE), most)


def _operand(reference: Reference, layers: Sequence[str]) -> str | None:
    """Which operand makes most of the own error; the two add up, since their roundings are independent."""
    power = sum(reference.own["all"][name].power for name in layers)
    of_w = sum(reference.own["weights"][name].power for name in layers)
    if not power:
        return None
    share = of_w / power
    return "w" if share >= _MOSTLY else "x" if share <= 1 - _MOSTLY else None
