"""The report as a record: what was run, what is fine, what is not. Renderers turn it into text or JSON."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.course import with_details
from fp8debug.analysis.facts import Health, RunFacts, health, run_facts
from fp8debug.analysis.judged import Judged, judged, judged_operands
from fp8debug.analysis.merge.facts import RankFacts, rank_facts
from fp8debug.analysis.problems import Problem, problems
from fp8debug.analysis.run import Run
from fp8debug.analysis.scope import Scope
from fp8debug.analysis.suspects import IsolatedHit, Suspect, isolated_hits, suspects
from fp8debug.errors import Fp8DebugError

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report says. Lists may be cut to the worst; the `n_` fields count all."""

    run: RunFacts
    scope: Scope
    """The part of the run that was looked at."""
    health: Health
    judged: tuple[Judged, ...]
    """One entry a recipe."""
    verdict: str
    """candidates | none | not_enough_evidence: nothing, or too few steps, could be judged"""
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

    @property
    def n_judged_steps(self) -> int:
        """Most sampled steps that any recipe was judged on."""
        return max((entry.n_steps for entry in self.judged), default=0)


def build_report(run: Run, *, scope: Scope | None = None, top: int | None = None) -> Report:
    """Read a report from a run, or from the part of it that the run was opened at.

    Args:
        run: an open run.
        scope: what the run was opened with, to be told in the report.
        top: keep so many entries of each list; None: all.

    Raises:
        Fp8DebugError: nothing was recorded, or nothing can be read.
    """
    if run.notice is not None:
        raise Fp8DebugError(f"{run.notice}; {_remedy(run)}")
    facts, values = run_facts(run), health(run)
    ranks = rank_facts(run)
    found_problems = problems(run, facts, values, ranks)
    if values.n_operands == 0:
        why = f" ({found_problems[0].message})" if found_problems else ""
        raise Fp8DebugError(f"no tensor was recorded in {run.path}{why}; record a run with `fp8debug attach train.py`")
    operands = judged_operands(run)
    candidates, watch = suspects(run)
    evidence = judged(run, operands, candidates, watch)
    isolated = isolated_hits(run)
    shown_candidates, shown_watch = candidates[:top], watch[:top]
    drawn = with_details(run, (*shown_candidates, *shown_watch), operands)
    return Report(
        run=facts,
        scope=scope or Scope(),
        health=values,
        judged=evidence,
        verdict=_verdict(run, evidence, candidates),
        n_candidates=len(candidates),
        candidates=drawn[: len(shown_candidates)],
        n_watch=len(watch),
        watch=drawn[len(shown_candidates) :],
        n_isolated_hits=len(isolated),
        isolated_hits=_worst_steps(isolated, top),
        problems=found_problems,
        thresholds=dict(run.thresholds),
        ranks=ranks,
    )


def _verdict(run: Run, evidence: tuple[Judged, ...], candidates: tuple[Suspect, ...]) -> str:
    if candidates:
        return "candidates"
    needed = run.thresholds["min_steps_short"]
    enough = any(entry.n_operands and entry.n_steps >= needed for entry in evidence)
    return "none" if enough else "not_enough_evidence"


def _worst_steps(isolated: tuple[IsolatedHit, ...], top: int | None) -> tuple[IsolatedHit, ...]:
    """The `top` worst, in the order of steps again."""
    if top is None or len(isolated) <= top:
        return isolated
    worst = sorted(isolated, key=lambda hit: (-(hit.db_lost or 0.0), -hit.n_operands))[:top]
    return tuple(sorted(worst, key=lambda hit: (hit.step, hit.recipe)))


def _remedy(run: Run) -> str:
    if run.manifest.status == "running":
        return "wait for the first flush, or record it again if the training was killed"
    return "record a run with `fp8debug attach train.py`"
