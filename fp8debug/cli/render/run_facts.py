"""What was run, as text."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.analysis.facts import Course, RunFacts
from fp8debug.analysis.given import Given
from fp8debug.analysis.merge.facts import RankFacts
from fp8debug.analysis.report import Report
from fp8debug.analysis.scope import Scope
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape, wrap
from fp8debug.cli.render.wording import RUN_STATUS, count, listed, number

_LABEL_WIDTH = 9


def run_lines(report: Report, looks: Looks, run_path: str) -> Iterator[str]:
    """The head of a report: one labelled fact a line."""
    yield looks.bold(f"RUN {escape(run_path)}")
    for label, text in run_facts(report):
        head, *rest = wrap(text, looks.width, indent=" " * (_LABEL_WIDTH + 2))
        yield f"  {label:<{_LABEL_WIDTH}}{head.lstrip()}"
        yield from rest


def run_facts(report: Report) -> Iterator[tuple[str, str]]:
    """(label, what is known), the verdict last but for the scope."""
    facts = report.run
    if facts.name:
        yield "name", escape(facts.name)
    yield "command", escape(facts.command) or "unknown"
    yield "status", _status(facts)
    if report.given is not None:
        yield "source", _source(report.given)
    yield "steps", _steps(facts)
    if facts.inference:
        yield "serves", "an inference run: a step is one forward, and evaluation passes are what is judged"
    if facts.loss.first is not None:
        yield "loss", _course(facts.loss)
    if facts.grad_norm.first is not None:
        yield "gradient", f"norm {_course(facts.grad_norm)}"
    yield "layers", _layers(facts)
    if report.ranks is not None:
        yield "ranks", _ranks(report.ranks)
    if facts.emulated:
        emulated = [f"{escape(text)} in {count(n, 'layer')}" for text, n in facts.emulated.items()]
        yield "emulated", f"{listed(emulated)}: these computed on quantised operands"
    yield "recipes", _recipes(report)
    yield "verdict", verdict_text(report)
    if scope := _scope(report.scope):
        yield "only", scope


def _status(facts: RunFacts) -> str:
    text = RUN_STATUS.get(facts.status, escape(facts.status))
    if facts.status_reason:
        text += f" ({escape(facts.status_reason)})"
    return f"{text}; started {escape(facts.created_at.replace('T', ' ', 1))}"


def _source(given: Given) -> str:
    names = listed([escape(name) for name in given.statistics]) or "none"
    return f"debug logs of Transformer Engine: {count(given.n_numbers, 'number')} as they were logged ({names})"


def _steps(facts: RunFacts) -> str:
    if not facts.n_steps:
        return "none finished yet"
    seen = "logged" if facts.status == "imported" else f"{facts.n_sampled_steps:,} of them sampled"
    text = f"{facts.n_steps:,} ({facts.first_step} to {facts.last_step}), {seen}"
    if facts.n_skipped_steps:
        text += f"; the GradScaler skipped {facts.n_skipped_steps:,}"
    if facts.n_segments > 1:
        text += f"; resumed {count(facts.n_segments - 1, 'time')}"
    return text


def _course(course: Course) -> str:
    text = f"{number(course.first)} -> {number(course.last)}"
    if course.first_nonfinite_step is not None:
        text += f", not finite from step {course.first_nonfinite_step}"
    return text


def _layers(facts: RunFacts) -> str:
    return f"{facts.n_layers_matched} of {count(facts.n_layers, 'GEMM layer')}, tensors {', '.join(facts.tensors)}"


def _ranks(ranks: RankFacts) -> str:
    parts = [
        f"{ranks.n_ranks}",
        _caveats(ranks),
        f"{count(ranks.n_sharded, 'operand')} in pieces" if ranks.n_sharded else "",
        f"{ranks.n_replicated} in replicas" if ranks.n_replicated else "",
        f"{ranks.n_partial} partial sums, merged with nothing" if ranks.n_partial else "",
    ]
    return escape("; ".join(filter(None, parts)))


def _recipes(report: Report) -> str:
    names = [escape(recipe) for recipe in report.run.recipes] or ["none"]
    sources = {entry.source for entry in report.judged}
    if sources == {"simulated"}:
        how = _how_simulated(report.ranks)
        return f"{', '.join(names)} (simulated: {how})"
    if "framework" in sources:
        framework = [escape(entry.recipe) for entry in report.judged if entry.source == "framework"]
        return f"{', '.join(names)}; the framework's own scales for {listed(framework)}"
    return ", ".join(names)


def _caveats(ranks: RankFacts) -> str:
    shown, more = ranks.caveats[:3], len(ranks.caveats) - 3
    return "; ".join([*shown, f"{more} more of the kind, below"] if more > 0 else shown)


def _how_simulated(ranks: RankFacts | None) -> str:
    if ranks is None:
        return "the training itself need not run in FP8"
    if ranks.n_recorded == 1:
        return "each rank from its own amax"
    return "histories see the largest amax over ranks"


def verdict_text(report: Report) -> str:
    """`2 errors; 3 candidates for BF16, 1 operand to watch`."""
    if report.verdict == "not_enough_evidence":
        return "not enough evidence"
    counts = [
        count(report.n_errors, "error") if report.n_errors else "",
        count(report.n_warnings, "warning") if report.n_warnings else "",
    ]
    found = listed(list(filter(None, counts))) or "nothing found"
    candidates = count(report.n_candidates, "candidate") if report.n_candidates else "no candidate"
    text = f"{found}; {candidates} for BF16" if report.given is None else f"{found}; no operand can be judged"
    if report.n_watch:
        text += f", {count(report.n_watch, 'operand')} to watch"
    if report.untold_problems:
        text += f", {count(len(report.untold_problems), 'problem')}"
    if report.ranks is not None and report.ranks.caveats and not report.n_candidates:
        text += f"; but {escape(_caveats(report.ranks))}"
    return text


def _scope(scope: Scope) -> str:
    parts = []
    if scope.steps:
        ranges = [
            f"{first}-" if last is None else str(first) if first == last else f"{first}-{last}"
            for first, last in scope.steps
        ]
        parts.append(f"steps {','.join(ranges)}")
    if scope.layer:
        parts.append(f"layers that match {escape(scope.layer)}")
    if scope.recipes:
        parts.append(f"recipe {listed([escape(recipe) for recipe in scope.recipes])}")
    return "; ".join(parts) and f"this report looks at {', '.join(parts)}"
