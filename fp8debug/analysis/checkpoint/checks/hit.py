"""What a check returns, and how hits become findings."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from fp8debug.analysis.checkpoint.facts import Facts
from fp8debug.analysis.checkpoint.records import CheckFinding, CheckPlace, Convention
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.analysis.diagnosis.finding import SEVERITIES


@dataclass(frozen=True, slots=True)
class Subject:
    """What checks look at."""

    store: Store
    convention: Convention
    facts: Facts
    tp: tuple[int, ...] = ()
    """Tensor-parallel sizes to check for."""
    consumer: str | None = None
    """Who will read it; a name in consumers.toml."""
    valid_rows: int | None = None
    """Rows of 2-d tensors that hold something; None: all."""
    ran: Mapping[str, str] | None = None
    """dtype that each module had when it ran, by name; None: nobody has looked."""
    reference_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows that a reference has of tensors that have more here, by name: those beyond are padding."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a check hit."""

    check: str
    """Name in checks.toml."""
    place: CheckPlace
    of: int | None = None
    """How many places could have hit; None: there is no such number."""
    severity: str | None = None
    """Where it is not that of checks.toml."""
    weight: float = 0.0
    """Larger is worse: places are ranked by it."""


Check = Callable[[Subject], Iterable[Hit]]


@dataclass(frozen=True, slots=True)
class CheckText:
    """An entry of checks.toml."""

    name: str
    severity: str
    title: str
    looks_for: str
    advice: str


@cache
def check_texts() -> Mapping[str, CheckText]:
    """The entries of checks.toml, by name."""
    text = (resources.files("fp8debug.analysis.checkpoint") / "checks.toml").read_text("utf-8")
    return {name: CheckText(name, **entry) for name, entry in tomllib.loads(text).items()}


def findings_of(hits: Iterable[Hit]) -> tuple[CheckFinding, ...]:
    """One finding a check and severity, worst severity first, then in the order of checks.toml."""
    groups: dict[tuple[str, str], list[Hit]] = {}
    texts = check_texts()
    for hit in hits:
        groups.setdefault((hit.check, hit.severity or texts[hit.check].severity), []).append(hit)
    order = list(texts)
    ranked = sorted(groups, key=lambda key: (SEVERITIES.index(key[1]), order.index(key[0])))
    return tuple(_finding(check, severity, groups[check, severity]) for check, severity in ranked)


def _finding(check: str, severity: str, hits: list[Hit]) -> CheckFinding:
    hits.sort(key=lambda hit: -hit.weight)
    text = check_texts()[check]
    of = max((hit.of for hit in hits if hit.of is not None), default=None)
    counted = f" ({len(hits):,} of {of:,})" if of is not None else f" ({len(hits):,})" if len(hits) > 1 else ""
    return CheckFinding(check, severity, f"{text.title}{counted}", text.advice, tuple(hit.place for hit in hits))
