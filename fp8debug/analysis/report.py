"""The report as a record: what was run, what is fine, what is not. Renderers turn it into text or JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fp8debug.analysis.course import with_details
from fp8debug.analysis.diagnosis import Finding, RuleBook, diagnose, load_rules
from fp8debug.analysis.displayed import Displayed
from fp8debug.analysis.facts import Health, RunFacts, health, run_facts
from fp8debug.analysis.given import Given, given
from fp8debug.analysis.judged import Judged, judged, judged_operands
from fp8debug.analysis.merge.facts import RankFacts, rank_facts
from fp8debug.analysis.problems import Problem, problems
from fp8debug.analysis.remedies import Remedy
from fp8debug.analysis.run import Run
from fp8debug.analysis.scope import Scope
from fp8debug.analysis.suspects import IsolatedHit, Suspect, isolated_hits, suspects
from fp8debug.analysis.thresholds import THRESHOLDS
from fp8debug.errors import Fp8DebugError, UsageError

REPORT_VERSION = 2


@dataclass(frozen=True, slots=True)
class RulesInForce:
    """The rules that findings come from, where they are not those shipped."""

    n_rules: int
    disabled: tuple[str, ...]
    """Rules that the user switched off."""
    changed: tuple[str, ...]
    """What the user changed: `clipping: severity = "warning"`, `threshold gap_bits = 2`."""
    own_files: tuple[str, ...]
    """Files of the user's own rules."""


@dataclass(frozen=True, slots=True)
class Report(Displayed):
    """Everything that a report says. Lists may be cut to the worst; the `n_` fields count all."""

    run: RunFacts
    scope: Scope
    """The part of the run that was looked at."""
    verdict: str
    """findings: an error or a warning | candidates: no such finding, but operands that should fall back to BF16 |
    none | not_enough_evidence: neither, and nothing, or too few steps, could be judged"""
    n_findings: int
    n_errors: int
    n_warnings: int
    findings: tuple[Finding, ...]
    """What is wrong, worst first."""
    rules: RulesInForce
    health: Health
    is_judged: bool
    """Whether enough steps could be judged to call operands candidates, or not."""
    judged: tuple[Judged, ...]
    """One entry a recipe."""
    n_candidates: int
    candidates: tuple[Suspect, ...]
    n_watch: int
    watch: tuple[Suspect, ...]
    n_isolated_hits: int
    isolated_hits: tuple[IsolatedHit, ...]
    problems: tuple[Problem, ...]
    thresholds: dict[str, float]
    ranks: RankFacts | None = None
    """None for a run of one rank."""
    remedies: tuple[Remedy, ...] = ()
    """For each candidate that is listed, the cheapest change that mends it."""
    given: Given | None = None
    """Numbers of another tool, in an imported run; None: the run was captured."""

    @property
    def untold_problems(self) -> tuple[Problem, ...]:
        """Problems that no listed finding tells."""
        return tuple(p for p in self.problems if not any(_tells(finding, p) for finding in self.findings))

    @property
    def n_judged_steps(self) -> int:
        """Most sampled steps that any recipe was judged on."""
        return max((entry.n_steps for entry in self.judged), default=0)


def build_report(
    run: Run,
    *,
    scope: Scope | None = None,
    top: int | None = None,
    rules: RuleBook | None = None,
    stage: Callable[[str], object] = lambda words: None,
) -> Report:
    """Read a report from a run, or from the part of it that the run was opened at.

    Args:
        run: an open run.
        scope: what the run was opened with, to be told in the report.
        top: keep so many entries of each list; None: all.
        rules: what findings come from; None: the rules as they are shipped.
        stage: told, before each part of the work, what it is.

    Raises:
        UsageError: a rule of the user's that cannot be asked.
        Fp8DebugError: nothing was recorded, or nothing can be read.
    """
    if run.notice is not None:
        raise Fp8DebugError(f"{run.notice}; {_what_to_do(run)}")
    stage("counting steps and operands")
    facts, values = run_facts(run), health(run)
    ranks = rank_facts(run)
    found_problems = problems(run, facts, values, ranks)
    if values.n_operands == 0:
        why = f" ({found_problems[0].message})" if found_problems else ""
        raise Fp8DebugError(f"no tensor was recorded in {run.path}{why}; record a run with `fp8debug attach train.py`")
    stage("judging the operands")
    operands = judged_operands(run)
    candidates, watch = suspects(run)
    evidence = judged(run, operands, candidates, watch)
    isolated = isolated_hits(run)
    rules = rules or load_rules()
    stage(f"asking {len(rules)} rules")
    findings = diagnose(run, rules)
    is_judged = _is_judged(run, evidence)
    shown_candidates, shown_watch = candidates[:top], watch[:top]
    stage("following suspects over the steps")
    drawn = with_details(run, (*shown_candidates, *shown_watch), operands)
    stage("searching the cheapest changes")
    remedies = _remedies(run, shown_candidates)
    return Report(
        run=facts,
        scope=scope or Scope(),
        verdict=_verdict(findings, candidates, is_judged=is_judged),
        n_findings=len(findings),
        n_errors=_n_of(findings, "error"),
        n_warnings=_n_of(findings, "warning"),
        findings=findings[:top],
        rules=_in_force(rules, run),
        health=values,
        is_judged=is_judged,
        judged=evidence,
        n_candidates=len(candidates),
        candidates=drawn[: len(shown_candidates)],
        n_watch=len(watch),
        watch=drawn[len(shown_candidates) :],
        n_isolated_hits=len(isolated),
        isolated_hits=_worst_steps(isolated, top),
        problems=found_problems,
        thresholds=dict(run.thresholds),
        ranks=ranks,
        remedies=remedies,
        given=given(run),
    )


def _remedies(run: Run, candidates: Sequence[Suspect]) -> tuple[Remedy, ...]:
    """Of those that a GEMM reads; none for what was never sampled, or is in a recipe that we do not know."""
    operands = [(suspect.layer, suspect.tensor) for suspect in candidates if suspect.gemms]
    if not operands:
        return ()
    from fp8debug.analysis.remedies import search  # imports numpy: a healthy run does without

    try:
        return search(run, operands)
    except UsageError:
        return tuple(remedy for operand in operands for remedy in _remedy_of(run, operand))


def _remedy_of(run: Run, operand: tuple[str, str]) -> tuple[Remedy, ...]:
    from fp8debug.analysis.remedies import search

    try:
        return search(run, [operand])
    except UsageError:
        return ()


def _tells(finding: Finding, problem: Problem) -> bool:
    """Whether it is about the problem and has one thing to say of it: of several, only the worst is read."""
    if problem.kind not in finding.problems:
        return False
    return len({place.message for place in finding.places}) == 1 or finding.message in problem.message


def _verdict(findings: Sequence[Finding], candidates: Sequence[Suspect], *, is_judged: bool) -> str:
    if any(finding.severity in ("error", "warning") for finding in findings):
        return "findings"
    if candidates:
        return "candidates"
    return "none" if is_judged else "not_enough_evidence"


def _is_judged(run: Run, evidence: Sequence[Judged]) -> bool:
    needed = run.thresholds["min_steps_short"]
    return any(entry.n_operands and entry.n_steps >= needed for entry in evidence)


def _n_of(findings: Sequence[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)


def _in_force(rules: RuleBook, run: Run) -> RulesInForce:
    replaced = [f"threshold {n} = {v:g}" for n, v in run.thresholds.items() if v != THRESHOLDS[n].default]
    return RulesInForce(
        n_rules=len(rules),
        disabled=tuple(rule.name for rule in rules.disabled),
        changed=(*replaced, *(f"{rule.name}: {change}" for rule in rules for change in rule.changes)),
        own_files=tuple(rule.file for rule in rules if rule.file),
    )


def _worst_steps(isolated: tuple[IsolatedHit, ...], top: int | None) -> tuple[IsolatedHit, ...]:
    """The `top` worst, in the order of steps again."""
    if top is None or len(isolated) <= top:
        return isolated
    worst = sorted(isolated, key=lambda hit: (-(hit.db_lost or 0.0), -hit.n_operands))[:top]
    return tuple(sorted(worst, key=lambda hit: (hit.step, hit.recipe)))


def _what_to_do(run: Run) -> str:
    if run.manifest.status == "running":
        return "wait for the first flush, or record it again if the training was killed"
    return "record a run with `fp8debug attach train.py`"
