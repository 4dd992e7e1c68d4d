"""A verification as text or JSON: the verdict first, then the runs, the noise, the findings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from fp8debug import __version__
from fp8debug.analysis.verification import Verification, VerifiedRun
from fp8debug.analysis.verification.judge import DRIFT, ENOUGH_SEEDS, SPREADS
from fp8debug.analysis.verification.record import Exposed
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.sparkline import sparkline
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import columns, escape, wrap
from fp8debug.cli.render.verdict import gap_text, headline, sentence
from fp8debug.cli.render.wording import count, listed, operand, shown_path, with_full_stop

VERIFY_VERSION = 1
_SHOWN = 8
_COLUMNS = (
    "gaps are means of the differences there, far-out steps left out; gradient norms are medians; findings are "
    "operands with an error or a warning under what the run computed with."
)


def verification_json(verified: Verification) -> str:
    """One object and a newline. What is unknown or infinite is null.

    `verify_version` rises when a key changes its meaning or goes; new keys may appear without.
    """
    judgement = verified.judgement
    document = {
        "verify_version": VERIFY_VERSION,
        "fp8debug_version": __version__,
        "verdict": judgement.verdict,
        "sentence": sentence(verified),
        "recovered": judgement.recovered,
        "recovered_error": judgement.recovered_error,
        "recipe_gap": _gap(verified.of("recipe")),
        "plan_gap": _gap(verified.of("plan")),
        "gap_over_spread": _over(_gap(verified.of("recipe")), judgement.noise.spread),
        "noise": asdict(judgement.noise),
        **{name: value for name, value in asdict(verified).items() if name != "judgement"},
    }
    return document_text(document)


def verification_text(verified: Verification, looks: Looks) -> str:
    """The whole answer, ending in a newline."""
    parts = (_verdict, _runs, _course, _noise, _found, _notes, _next)
    sections = [list(part(verified, looks)) for part in parts]
    return "\n".join("\n".join(lines) + "\n" for lines in sections if lines)


def _verdict(verified: Verification, looks: Looks) -> Iterator[str]:
    paint = looks.green if verified.judgement.is_helpful else looks.red
    if verified.judgement.verdict == "unknown":
        paint = looks.yellow
    yield f"{looks.bold('VERIFY')} {escape(verified.plan_file)}: {paint(headline(verified))}"
    yield from _paragraph(sentence(verified), looks)
    yield from _paragraph(_plan_sentence(verified), looks)


def _plan_sentence(verified: Verification) -> str:
    whole, layers = verified.layers_in_bf16, verified.plan_layers
    others = [layer for layer in layers if layer not in whole]
    said = []
    if whole:
        said.append(f"keeps {_some(whole)} in BF16")
    if others:
        said.append(f"changes what {_some(others)} {'computes' if len(others) == 1 else 'compute'} with")
    kept = f"; {100 * verified.flops_kept:.1f} % of the GEMM FLOPs stay in low precision" if verified.flops_kept else ""
    return f"The plan {listed(said) or 'changes nothing'}{kept}."


def _paragraph(text: str, looks: Looks) -> list[str]:
    """Wrapped, with no line that begins with a percent sign."""
    return [line.replace("\0", " ") for line in wrap(text.replace(" %", "\0%"), looks.width)]


def _some(names: Sequence[str]) -> str:
    shown = [escape(name) for name in names[:_SHOWN]]
    return listed(shown) if len(names) <= _SHOWN else f"{', '.join(shown)} and {len(names) - _SHOWN} more layers"


# The runs -------------------------------------------------------------------------------------------------------------


def _runs(verified: Verification, looks: Looks) -> Iterator[str]:
    base = verified.of("bf16")
    rows: list[tuple[str, ...]] = [("run", "last loss", "gap to BF16", "grad norm", "findings", "exit")]
    for run in verified.runs:
        findings = "-" if run.kind == "seed" else str(len({(found.layer, found.tensor) for found in run.exposed}))
        gap = "-" if run.tail is None else gap_text(run.tail)
        rows.append((_name(verified, run), _loss(run), gap, _loss_like(run.grad_norm), findings, str(run.exit_code)))
    if not any(run.exit_code for run in verified.runs):
        rows = [row[:-1] for row in rows]
    head, *lines = columns(rows, right=(False, True, True, True, True, True))
    yield looks.dim(head)
    yield from lines
    tail = verified.of("recipe").tail
    if tail is not None and tail.first_step is not None:
        steps = f"steps {tail.first_step} to {tail.last_step} of {count(base.n_steps, 'step')}"
        yield from (looks.dim(line) for line in wrap(f"Losses are means over {steps}; {_COLUMNS}", looks.width))


def _name(verified: Verification, run: VerifiedRun) -> str:
    recipe = escape(verified.recipe)
    return {"bf16": "BF16", "recipe": recipe, "plan": f"{recipe} with the plan"}.get(run.kind, f"BF16, seed {run.seed}")


def _loss(run: VerifiedRun) -> str:
    return "not finite" if run.loss is None and run.tail is not None else _loss_like(run.loss)


def _loss_like(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _course(verified: Verification, looks: Looks) -> Iterator[str]:
    tails = {_name(verified, run): run.tail for run in verified.runs if run.tail is not None and run.tail.curve}
    values = [value for tail in tails.values() for _, value in tail.curve]
    if not values:
        return
    low, high = min(0.0, *values), max(verified.judgement.noise.threshold, *values)
    width = max(len(name) for name in tails)
    first, last = (f(step for tail in tails.values() for step, _ in tail.curve) for f in (min, max))
    yield looks.bold(f"GAP OVER STEPS {first} TO {last}, from {low:+.3g} to {high:+.3g}")
    for name, tail in tails.items():
        points = [value for _, value in tail.curve]
        line = sparkline(
            points, low=low, high=high, width=looks.width - width - 4, worst=max, ascii_only=looks.ascii_only
        )
        yield f"  {name:<{width}}  {line}"


def _noise(verified: Verification, looks: Looks) -> Iterator[str]:
    noise = verified.judgement.noise
    yield looks.bold("NOISE")
    yield from _paragraph(f"A gap above {noise.threshold:.4f} stands out of the noise: {_why(verified)}.", looks)


def _why(verified: Verification) -> str:
    noise = verified.judgement.noise
    if noise.spread is not None and noise.threshold == SPREADS * noise.spread:
        text = f"{SPREADS:.0f} times the spread ({noise.spread:.4f}) of the last loss of {noise.n_seeds} BF16 seeds"
        gap = verified.of("recipe").tail
        if gap is not None and gap.gap is not None and math.isfinite(gap.gap) and noise.spread:
            text += f"; the recipe's gap is {gap.gap / noise.spread:.1f} times that spread"
        return text
    if noise.n_seeds < ENOUGH_SEEDS:
        return (
            f"{100 * DRIFT:.0f} % of the loss, since trainings that differ by rounding alone drift that far apart; "
            f"--seeds {ENOUGH_SEEDS} measures it for this one"
        )
    return "a thousandth of the loss; seeds and steps scatter less"


# The rest -------------------------------------------------------------------------------------------------------------


def _found(verified: Verification, looks: Looks) -> Iterator[str]:
    for title, entries in (
        ("NO LONGER FOUND WITH THE PLAN", verified.resolved),
        ("STILL FOUND WITH THE PLAN", verified.remaining),
        ("FOUND WITH THE PLAN ONLY", verified.new),
    ):
        names = _operands(entries)
        if names:
            yield looks.bold(f"{title} ({count(len(names), 'operand')})")
            more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
            yield from wrap(", ".join([*names[:_SHOWN], *more]), looks.width)


def _operands(entries: Sequence[Exposed]) -> list[str]:
    names = (operand(entry.layer, entry.tensor) if entry.tensor else escape(entry.layer) for entry in entries)
    return list(dict.fromkeys(names))


def _notes(verified: Verification, looks: Looks) -> Iterator[str]:
    if verified.notes:
        yield looks.bold("NOTES")
        for note in verified.notes:
            yield from wrap(f"- {with_full_stop(escape(note))}", looks.width, hanging="  ")


def _next(verified: Verification, looks: Looks) -> Iterator[str]:
    base, recipe, plan = (_path(verified.of(kind)) for kind in ("bf16", "recipe", "plan"))
    yield looks.bold("NEXT")
    yield f"  {looks.dim('# spikes, first odd step, differences of the runs:')}"
    yield f"  fp8debug compare {base} {recipe} {plan}"
    yield f"  {looks.dim('# what is left to find with the plan:')}"
    yield f"  fp8debug report {plan}"


def _path(run: VerifiedRun) -> str:
    return escape(shlex.quote(shown_path(Path(run.path))))


def _gap(run: VerifiedRun) -> float | None:
    return None if run.tail is None else run.tail.gap


def _over(gap: float | None, spread: float | None) -> float | None:
    return gap / spread if gap is not None and spread else None
