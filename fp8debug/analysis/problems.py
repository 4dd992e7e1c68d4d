"""What went wrong or is missing in a run, so that no absence passes for health."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fp8debug.analysis.facts import Health, RunFacts
from fp8debug.analysis.merge.facts import RankFacts
from fp8debug.analysis.run import Run
from fp8debug.errors import some


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing a person should know before trusting the rest."""

    kind: str
    """The event's kind, or: bad_file, missing_tensor, evaluation_only, no_tokens, missing_rank, replicas_differ,
    nonfinite, status."""
    message: str
    count: int = 1
    """How often it was reported."""


_EVENTS = """
with named as (
    select *, nullif(concat_ws(' ', layer, tensor), '') as operand from events where kind not in ('resumed', 'dropped')
)
select kind, message, list_sort(list(distinct operand) filter (operand is not null)), count(*), min(step)
from named
group by kind, message
order by kind, min(step), message
"""

_DROPPED = """
select sum(n), min(step), max(step), count(*), whole
from (
    select step, message like '%dropped whole%' as whole,
        try_cast(replace(regexp_extract(message, '^([0-9,]+) record', 1), ',', '') as bigint) as n
    from events where kind = 'dropped'
)
group by whole
order by whole
"""

_NO_GRADIENT = ": no gradient reached it (frozen, or no backward ran)"
_NO_STATE = ": no optimizer that keeps it has stepped on its weight"
_WHY_NOT = {
    "dy": _NO_GRADIENT,
    "dx": ": its input needs no gradient (as in a first layer), or no backward ran",
    "dw": _NO_GRADIENT,
    "m": _NO_STATE,
    "v": _NO_STATE,
}

_SEEN = """
select layer, tensor, bool_and(pass = 'eval'), bool_and(status = 'no_tokens')
from records
group by layer, tensor
"""
_OF_CACHES = ("key", "value")
"""Kept under the name of the attention itself, which has nothing else."""


def problems(run: Run, facts: RunFacts, health: Health, ranks: RankFacts | None) -> tuple[Problem, ...]:
    """Everything wrong or missing, most fundamental first."""
    found = (*_of_the_run(facts), *_not_finite(facts, health), *_of_ranks(ranks), *_missing(run))
    return (*found, *_dropped(run), *_events(run))


def _of_the_run(facts: RunFacts) -> Iterator[Problem]:
    reason = f": {facts.status_reason}" if facts.status_reason else ""
    if facts.status == "disabled":
        yield Problem("status", f"fp8debug switched itself off while the training went on{reason}")
    elif facts.status == "killed":
        yield Problem(
            "status", "the process that wrote this run is gone without closing it: its last, unflushed part is missing"
        )
    for rank in facts.dead_ranks:
        yield Problem("status", f"the process of rank {rank} is gone while others still write")


def _not_finite(facts: RunFacts, health: Health) -> Iterator[Problem]:
    if health.n_nan or health.n_inf:
        operands = "1 operand" if health.n_operands_nonfinite == 1 else f"{health.n_operands_nonfinite} operands"
        yield Problem(
            "nonfinite",
            f"{health.n_nan:,} NaN and {health.n_inf:,} Inf values in {operands}, first in "
            f"{health.first_nonfinite_layer} {health.first_nonfinite_tensor} at step {health.first_nonfinite_step}",
        )
    for name, course in (("loss", facts.loss), ("gradient norm", facts.grad_norm)):
        if course.first_nonfinite_step is not None:
            yield Problem("nonfinite", f"the {name} is not finite, first at step {course.first_nonfinite_step}")


def _of_ranks(ranks: RankFacts | None) -> Iterator[Problem]:
    if ranks is None:
        return
    if ranks.missing:
        listed = ", ".join(map(str, ranks.missing[:8])) + (", ..." if len(ranks.missing) > 8 else "")
        yield Problem("missing_rank", f"{len(ranks.missing)} of {ranks.n_ranks} ranks left no records: {listed}")
    for note in ranks.notes:
        yield Problem("rank_missing", note)
    for differing in ranks.differing:
        yield Problem("replicas_differ", differing.message)


def _missing(run: Run) -> Iterator[Problem]:
    """Tensors that should be there and are not; logs of another tool hold what was asked of that."""
    if "imported_from" in run.manifest.options:
        return
    seen = run.sql(_SEEN).fetchall()
    manifest = run.manifest
    serves = bool(manifest.options.get("inference"))
    layers = {layer for layer, *_ in seen}
    evaluated = set() if serves else layers - {layer for layer, _, only_evaluated, _ in seen if not only_evaluated}
    idle = layers - evaluated - {layer for layer, _, _, no_tokens in seen if not no_tokens}
    for kind, names, what in (
        ("evaluation_only", evaluated, "ran in evaluation only, as a teacher does: recorded, not judged"),
        ("no_tokens", idle, "no token reached it, as an expert that is never chosen"),
    ):
        if names:
            yield Problem(kind, f"{some(sorted(names))}: {what}")
    caches = {layer for layer, tensor, *_ in seen if tensor in _OF_CACHES}
    without_weight = caches | {layer.info.name for layer in run.layers if layer.info.kind == "attention"}
    for tensor in manifest.tensors:
        if serves and tensor in ("dy", "dx", "dw"):
            continue
        if tensor in _OF_CACHES:
            having = caches or layers
        else:
            having = layers - (without_weight if tensor in ("m", "v") else caches)
        without = sorted(having - evaluated - idle - {layer for layer, name, *_ in seen if name == tensor})
        if without:
            yield Problem("missing_tensor", f"no {tensor} was recorded for {some(without)}{_WHY_NOT.get(tensor, '')}")


def _dropped(run: Run) -> Iterator[Problem]:
    """What a slow disk has cost, in one sentence: an event says it of each time."""
    for n, first, last, count, whole in run.sql(_DROPPED).fetchall():
        what = "health and scales too" if whole else "errors, histograms and details"
        between = f"of step {first}" if first == last else f"between steps {first} and {last}"
        yield Problem(
            "dropped",
            f"{what} of {n or 0:,} records {between} were dropped, since the disk was slower than the training "
            "(--on-full drop)",
            count,
        )


def _events(run: Run) -> Iterator[Problem]:
    told = {note.message for note in run.presence.notes} if run.presence is not None else set()
    for kind, message, operands, count, first_step in run.sql(_EVENTS).fetchall():
        if kind == "rank_missing" and message in told:
            continue
        at = "" if first_step is None else f" (first at step {first_step})" if count > 1 else f" (step {first_step})"
        text = f"{some(operands)}: {message}{at}" if operands else f"{message}{at}"
        yield Problem(kind, text, count)
