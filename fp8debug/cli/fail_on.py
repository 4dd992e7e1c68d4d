"""The condition of `--fail-on`: `candidates`, `nan`, `underflow>0.02`, several with commas."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp8debug.errors import Fp8DebugError, UsageError, nearest

if TYPE_CHECKING:
    from fp8debug.analysis.report import Report
    from fp8debug.analysis.run import Run

COUNTS = {
    "findings": "errors and warnings",
    "errors": "findings that are errors",
    "warnings": "findings that are warnings",
    "candidates": "operands that should fall back to BF16",
    "watch": "operands on the watch list",
    "isolated": "steps with isolated hits",
    "nan": "NaN and Inf values, non-finite losses and gradient norms included",
}
"""Counts of the whole report; without a comparison they mean `> 0`."""
_OF_FINDINGS = ("findings", "errors", "warnings")

JUDGED_METRICS = (
    "sqnr_db",
    "sqnr_low_db",
    "gain",
    "underflow",
    "underflow_low",
    "overflow",
    "scale_gap_bits",
    "db_lost",
)
ERROR_METRICS = ("mse", "rel_l2", "cosine", "underflow_all")
"""Metrics of single records; only records that the rules judge count."""

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

_TERM = re.compile(r"\s*(\w+)\s*(?:(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))?\s*")


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison."""

    name: str
    operator: str
    limit: float

    @property
    def text(self) -> str:
        """As a person would write it."""
        return f"{self.name}{self.operator}{self.limit:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the condition holds, and what made it hold."""

    expression: str
    hit: bool
    reasons: tuple[str, ...]


def parse_fail_on(text: str) -> tuple[Term, ...]:
    """Read a condition; it holds when any of its terms does.

    Raises:
        UsageError: not of that form, or an unknown name.
    """
    return tuple(_parse_term(part, text) for part in text.split(","))


def _parse_term(part: str, whole: str) -> Term:
    match = _TERM.fullmatch(part)
    if match is None:
        raise UsageError(f"--fail-on {whole!r}: got {part.strip()!r}; {_allowed()}")
    name, sign, limit = match.groups()
    if name not in (*COUNTS, *JUDGED_METRICS, *ERROR_METRICS):
        near = nearest(name, (*COUNTS, *JUDGED_METRICS, *ERROR_METRICS))
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise UsageError(f"--fail-on {whole!r}: unknown name {name!r}; {hint}{_allowed()}")
    if sign is None and name not in COUNTS:
        raise UsageError(f"--fail-on {whole!r}: {name} needs a comparison, such as {name}>0.02; {_allowed()}")
    return Term(name, sign or ">", float(limit or 0))


def _allowed() -> str:
    return (
        f"expected {', '.join(COUNTS)} (alone, or compared with a number), or a comparison (> >= < <=) of "
        f"{', '.join((*JUDGED_METRICS, *ERROR_METRICS))}; several with commas"
    )


def evaluate(terms: tuple[Term, ...], expression: str, report: Report, run: Run) -> Outcome:
    """Evaluate a condition on a report and the records behind it.

    Raises:
        Fp8DebugError: a term is about judged records and there is none: silence must not pass for health.
    """
    reasons = tuple(reason for term in terms if (reason := _reason(term, report, run)))
    return Outcome(expression, bool(reasons), reasons)


def _reason(term: Term, report: Report, run: Run) -> str | None:
    """Why the term holds, None when it does not."""
    found = term.name in _OF_FINDINGS and _counts(report)[term.name] > 0
    if term.name != "nan" and not found and not (report.is_judged or report.n_candidates):
        raise Fp8DebugError(
            f"cannot evaluate --fail-on {term.text}: not enough evidence in {report.run.path}, "
            f"{report.n_judged_steps} sampled steps were judged; record with a smaller --every"
        )
    if term.name in COUNTS:
        got = _counts(report)[term.name]
        return f"{term.text}: {got:,} ({COUNTS[term.name]})" if OPERATORS[term.operator](got, term.limit) else None
    return next(_worst_record(term, run), None)


def _counts(report: Report) -> dict[str, int]:
    courses = (report.run.loss, report.run.grad_norm)
    not_finite = sum(course.first_nonfinite_step is not None for course in courses)
    return {
        "findings": report.n_errors + report.n_warnings,
        "errors": report.n_errors,
        "warnings": report.n_warnings,
        "candidates": report.n_candidates,
        "watch": report.n_watch,
        "isolated": report.n_isolated_hits,
        "nan": report.health.n_nan + report.health.n_inf + not_finite,
    }


def _worst_record(term: Term, run: Run) -> Iterator[str]:
    order = "desc" if term.operator.startswith(">") else "asc"
    if term.name in JUDGED_METRICS:
        source = "evidence where not alternate"
    else:
        source = """
            error_ratios semi join (from evidence where series = 'sampled' and not alternate)
            using (segment, rank, seq, recipe, fmt) where true"""
    rows = run.sql(
        f"""
        with found as (
            select segment, rank, seq, recipe, fmt, layer, tensor, step, {term.name} as value
            from {source} and isfinite({term.name}) and {term.name} {term.operator} $limit
        )
        select
            (select count(distinct (segment, rank, seq, recipe, fmt)) from found), layer, tensor, recipe, step, value
        from found
        order by value {order}, step, layer, tensor
        limit 1
        """,
        limit=term.limit,
    ).fetchall()
    for n, layer, tensor, recipe, step, value in rows:
        records = "1 record" if n == 1 else f"{n:,} records"
        yield f"{term.text}: {records}, worst {value:.4g} in {layer} {tensor} at step {step} under {recipe}"
