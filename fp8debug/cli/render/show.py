"""One tensor of one layer as text or JSON: what it is, what is wrong with it, how it is spread, how it went."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from fp8debug import __version__
from fp8debug.analysis.distribution import Distribution
from fp8debug.analysis.operand import Fit, Operand
from fp8debug.analysis.parts import printable_text
from fp8debug.cli.render.commands import sql_command
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.octaves import Range, chart_lines, line_of
from fp8debug.cli.render.operand_tables import channel_lines, course_lines, fit_lines, paragraph, payload_lines, short
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import chunks, escape, wrap
from fp8debug.cli.render.wording import METRICS, count, listed, operand, step_range, with_full_stop
from fp8debug.errors import some

SHOW_VERSION = 1
_MAX_RANGES = 3
_LINE_COLUMNS = 40
_WHAT = {
    "x": "Input",
    "w": "Weight",
    "dy": "Gradient of the output",
    "y": "Output",
    "dx": "Gradient of the input",
    "dw": "Gradient of the weight",
    "m": "First moment of the weight",
    "v": "Second moment of the weight",
}
_LEVELS = {
    "candidate": "CANDIDATE FOR BF16",
    "watch": "ON THE WATCH LIST",
    "fine": "FINE",
    "not_judged": "NOT JUDGED",
}
_PAINTS: dict[str, Callable[[Looks], Callable[[str], str]]] = {
    "candidate": lambda looks: looks.red,
    "watch": lambda looks: looks.yellow,
    "fine": lambda looks: looks.green,
    "not_judged": lambda looks: looks.yellow,
}


def show_json(operands: Sequence[Operand], run_path: str) -> str:
    """One JSON object and a newline; what is unknown, NaN or infinite is null.

    `show_version` rises when a key changes its meaning or goes; new keys may appear without.
    """
    return document_text(
        {
            "show_version": SHOW_VERSION,
            "fp8debug_version": __version__,
            "run": run_path,
            "layer": operands[0].layer if operands else None,
            "operands": [asdict(each) for each in operands],
        }
    )


def render_operand(shown: Operand, looks: Looks, *, run_path: str) -> str:
    """All that is known of one tensor, ending in a newline."""
    sections = (
        _heading(shown, looks),
        _standing(shown, looks),
        _distribution(shown, looks),
        fit_lines(shown, looks),
        course_lines(shown, looks),
        channel_lines(shown, looks),
        payload_lines(shown.payload, looks),
        _next(shown, looks, run_path),
    )
    return _joined(sections)


def render_layer(operands: Sequence[Operand], looks: Looks, *, run_path: str) -> str:
    """Each tensor of a layer in short form."""
    layer = operands[0].layer
    sections = [_layer_heading(operands, looks), *(_short_form(each, looks) for each in operands)]
    return _joined([*sections, _next_of_layer(layer, operands[0].tensor, looks, run_path)])


def _joined(sections: Sequence[Iterator[str]]) -> str:
    return "\n".join("\n".join(lines) + "\n" for section in sections if (lines := list(section)))


def _heading(shown: Operand, looks: Looks) -> Iterator[str]:
    facts = shown.facts
    yield from _name(operand(shown.layer, shown.tensor), looks)
    module = f"of a {escape(facts.class_name)}" if facts.class_name else "of a layer"
    size = f" ({facts.in_features:,} to {facts.out_features:,})" if facts.in_features and facts.out_features else ""
    reads = f"; read by {listed(facts.gemms)}" if facts.gemms else ""
    yield from paragraph(f"{_WHAT.get(shown.tensor, 'A tensor')} {module}{size}{reads}.", looks)
    yield from paragraph(_shape(shown), looks)
    yield from paragraph(_recorded(shown), looks)
    if facts.n_nonfinite:
        text = f"{count(facts.n_nonfinite, 'element')} NaN or infinite, first at step {facts.first_nonfinite_step}."
        yield from paragraph(text, looks, looks.red)


def _name(name: str, looks: Looks) -> Iterator[str]:
    """Whole, over several lines where it is long."""
    yield from (looks.bold(piece.strip()) for piece in chunks(name, looks.width))


def _shape(shown: Operand) -> str:
    facts = shown.facts
    kind = escape(facts.dtype or "unknown dtype")
    if facts.gemm_dtype and facts.gemm_dtype != facts.dtype:
        kind += f", which the GEMM reads as {escape(facts.gemm_dtype)}"
    shape = " x ".join(f"{size:,}" for size in facts.shape) or "unknown shape"
    placed = f"; {escape(facts.placement)}" if facts.placement and facts.placement != "local" else ""
    approx = "; counted as the BF16-rounded values" if facts.approx else ""
    return f"{shape} of {kind}{placed}{approx}."


def _recorded(shown: Operand) -> str:
    facts = shown.facts
    if facts.first_step is None or facts.last_step is None:
        return "Never recorded in a pass that counts."
    ranks = f" on {count(len(facts.ranks), 'rank')}" if len(facts.ranks) > 1 else ""
    counted = some([str(step) for step in facts.counted_steps])
    values = f"every value counted in {len(facts.counted_steps):,} ({counted})" if counted else "no value counted"
    return (
        f"{count(facts.n_records, 'record')}{ranks} in {step_range(facts.first_step, facts.last_step)}; "
        f"{facts.n_sampled_steps:,} of {count(facts.n_steps, 'step')} sampled, {values}."
    )


def _standing(shown: Operand, looks: Looks) -> Iterator[str]:
    standing = shown.standing
    yield from _level(shown, looks)
    for verdict in standing.verdicts:
        steps = step_range(verdict.first_step, verdict.last_step)
        text = f"Under {verdict.recipe} ({verdict.fmt}), {steps}: {verdict.reason}"
        yield from paragraph(with_full_stop(escape(text)), looks)
    if standing.verdicts and standing.fine_under:
        yield from paragraph(f"Fine under {listed([escape(each) for each in standing.fine_under])}.", looks)
    for told in standing.told:
        text = f"- {told.severity}: {with_full_stop(escape(told.message))} {escape(told.advice)} {escape(told.page)}"
        yield from paragraph(text, looks, hanging="  ")


def _level(shown: Operand, looks: Looks, name: str = "") -> Iterator[str]:
    """`CANDIDATE FOR BF16 under delayed`, behind the name of a tensor where it is one of several."""
    standing, first_bad = shown.standing, shown.facts.first_nonfinite_step
    under = [verdict.recipe for verdict in standing.verdicts if verdict.level == standing.level]
    recipes = listed([escape(each) for each in under or standing.fine_under])
    serious = any(told.severity in ("error", "warning") for told in standing.told)
    word, paint = _LEVELS[standing.level], _PAINTS[standing.level](looks)
    text = word + (f" under {recipes}" if recipes else "")
    if standing.why_not_judged:
        text += f": {standing.why_not_judged}"
    if standing.level == "fine" and serious:
        text, paint = f"A FINDING NAMES IT, though its casts are fine under {recipes}", looks.red
    elif standing.level == "fine" and first_bad is not None:
        text, paint = f"NOT FINITE from step {first_bad}; its finite values are fine under {recipes}", looks.red
    for line in wrap(f"{name}  {text}" if name else text, looks.width, indent="", hanging="  ", break_long=True):
        yield looks.bold(paint(line))


def _distribution(shown: Operand, looks: Looks) -> Iterator[str]:
    spread = shown.distribution
    if spread is None:
        yield looks.bold("DISTRIBUTION not known")
        yield from paragraph(_why_unknown(shown), looks)
        return
    yield looks.bold(f"DISTRIBUTION at step {spread.step}") + _why_this_step(shown)
    yield from paragraph(_counts(spread), looks)
    if not spread.octaves:
        return
    bars = [("before", spread.before)]
    if spread.after:
        bars.append(("after", spread.after))
    yield from chart_lines(spread.octaves, bars, _ranges(shown), looks)
    yield from paragraph(_legend(shown, spread, looks), looks, looks.dim)


def _why_unknown(shown: Operand) -> str:
    if 0 in shown.facts.shape:
        return "It has no elements."
    return "Its values were not counted in this run: record them with `fp8debug attach --every N ...`."


def _why_this_step(shown: Operand) -> str:
    if shown.asked_step is None:
        return ""
    if shown.asked_step == shown.step:
        return ", as asked"
    return f", the nearest to {shown.asked_step} of which values were counted"


def _counts(spread: Distribution) -> str:
    n_nonzero = spread.n - spread.n_zero
    text = f"{count(spread.n, 'finite element')}, {spread.n_zero:,} of them zero"
    if spread.amin is not None and spread.amax is not None:
        text += f"; magnitudes from {short(spread.amin)} to {short(spread.amax)}"
    if spread.recipe is None or not n_nonzero:
        return text + "."
    lost = _lost((spread.n_zero_after - spread.n_zero) / n_nonzero, "underflow")
    clipped = _lost(spread.n_overflow / spread.n, "overflow")
    scale = f"scale {short(spread.scale)}"
    if spread.n_scales > 1:
        scale = f"{spread.n_scales:,} scales, {short(spread.scale)} at the largest magnitude"
    return (
        f"{text}. After {escape(spread.recipe)} in {spread.fmt}, {scale}: {lost} of the non-zero values become zero, "
        f"{clipped} of the elements round beyond the largest value."
    )


def _lost(share: float, metric: str) -> str:
    return METRICS[metric].text(share) if share else "none"


def _ranges(shown: Operand) -> list[Range]:
    """That of the recipe looked at first, then those of current scaling."""
    fits = [fit for fit in shown.fits if fit.largest is not None]
    own = shown.distribution.fmt if shown.distribution is not None else None
    chosen = [fit for fit in fits if (fit.recipe, fit.fmt) == (shown.recipe, own)]
    chosen += [fit for fit in fits if fit.recipe == "current" and fit not in chosen]
    return [_range(fit) for fit in chosen[:_MAX_RANGES]]


def _range(fit: Fit) -> Range:
    assert fit.largest is not None and fit.smallest_normal is not None and fit.smallest_subnormal is not None
    label = f"{escape(fit.recipe.partition(':')[0])[:8]} {fit.fmt}"
    return Range(label, fit.largest, fit.smallest_normal, fit.smallest_subnormal)


def _legend(shown: Operand, spread: Distribution, looks: Looks) -> str:
    faint, firm = (".", "-") if looks.ascii_only else ("\u2504", "\u2500")
    text = (
        f"Elements in each octave, 2^e to 2^(e+1). Lines: what a format holds at its scale, {firm} in full precision, "
        f"{faint} subnormal."
    )
    if spread.recipe is None and shown.recipe is not None:
        text += (
            f" What {escape(shown.recipe)} leaves is not drawn: it has not one scale for all of the tensor that a "
            "histogram could be held against."
        )
    return text


def _next(shown: Operand, looks: Looks, run_path: str) -> Iterator[str]:
    yield looks.bold("NEXT")
    run, layer = shlex.quote(run_path), _only(shown.layer)
    if shown.distribution is not None:
        yield f"  {looks.dim('# the counts of the distribution:')}"
        yield from (f"  {line}" for line in sql_command(run_path, shown.distribution.sql).splitlines())
    yield f"  {looks.dim('# every number of the history:')}"
    yield from (f"  {line}" for line in sql_command(run_path, _history_query(shown)).splitlines())
    if shown.facts.counted_steps and layer.isprintable():
        yield f"  {looks.dim('# what other recipes would do to it:')}"
        yield f"  fp8debug whatif {run} --layer {shlex.quote(layer)} --tensor {shown.tensor}"


def _history_query(shown: Operand) -> str:
    where = f"where layer = {printable_text(shown.layer)}\n  and tensor = {printable_text(shown.tensor)}"
    if shown.recipe is None:
        return f"select step, amax, amin, n_nonfinite\nfrom tensor_steps\n{where}\norder by step"
    return (
        "select step, recipe, fmt, amax, scale, scale_gap_bits, sqnr_db, sqnr_low_db, underflow, overflow, gain\n"
        f"from operand_steps\n{where}\n  and recipe = {printable_text(shown.recipe)}\norder by recipe, fmt, step"
    )


def _only(layer: str) -> str:
    """A regex that is found in this layer's name alone."""
    return f"^{re.escape(layer)}$"


def _layer_heading(operands: Sequence[Operand], looks: Looks) -> Iterator[str]:
    facts = operands[0].facts
    yield from _name(escape(operands[0].layer), looks)
    size = f" ({facts.in_features:,} to {facts.out_features:,})" if facts.in_features and facts.out_features else ""
    tensors = listed([each.tensor for each in operands])
    yield from paragraph(f"{escape(facts.class_name or 'A layer')}{size}; recorded: {tensors}.", looks)


def _short_form(shown: Operand, looks: Looks) -> Iterator[str]:
    """Its verdict, how it is spread in one line, and what the recipe leaves."""
    yield from _level(shown, looks, escape(shown.tensor))
    yield from paragraph(_shape(shown), looks)
    for verdict in () if shown.standing.told else shown.standing.verdicts[:1]:
        yield from paragraph(with_full_stop(escape(f"Under {verdict.recipe}: {verdict.reason}")), looks)
    for told in shown.standing.told:
        yield from paragraph(f"- {told.severity}: {with_full_stop(escape(told.message))}", looks, hanging="  ")
    spread = shown.distribution
    if spread is not None and spread.octaves:
        first, last = spread.octaves[0], spread.octaves[-1] + 1
        line = line_of(spread.octaves, spread.before, _LINE_COLUMNS, looks)
        yield f"  step {spread.step}: 2^{first} {line} 2^{last}"
    for fit in shown.fits:
        if fit.recipe == shown.recipe and not fit.alternate and fit.source != "whatif":
            yield from paragraph(_in_short(fit), looks)


def _in_short(fit: Fit) -> str:
    parts = [f"SQNR {METRICS['sqnr_db'].text(fit.sqnr_db)} (healthy {fit.healthy_sqnr_db:.1f})"]
    if fit.exact:
        parts = ["nothing is lost"]
    if fit.sqnr_low_db is not None:
        parts.append(f"{METRICS['sqnr_low_db'].text(fit.sqnr_low_db)} of the smallest 99 %")
    if fit.underflow:
        parts.append(f"{METRICS['underflow'].text(fit.underflow)} become zero")
    if fit.overflow:
        parts.append(f"{METRICS['overflow'].text(fit.overflow)} clipped")
    return f"{escape(fit.recipe)} in {fit.fmt}: {', '.join(parts)}."


def _next_of_layer(layer: str, tensor: str, looks: Looks, run_path: str) -> Iterator[str]:
    if layer.isprintable():
        yield looks.bold("NEXT")
        yield f"  {looks.dim('# one of them closely:')}"
        yield f"  fp8debug show {shlex.quote(run_path)} {shlex.quote(layer)} {tensor}"
