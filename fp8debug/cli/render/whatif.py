"""A what-if as text or JSON: recipes are rows, operands and GEMMs columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from fp8debug import __version__
from fp8debug.analysis.whatif import WhatIf
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import chunks, display_width, escape, wrap
from fp8debug.cli.render.whatif_figures import common_formats, figure_lines
from fp8debug.cli.render.wording import count, listed, with_full_stop
from fp8debug.formats import FORMATS

WHATIF_VERSION = 1


def whatif_json(answer: WhatIf, path: str) -> str:
    """One object and a newline, ratios beside the sums they are of. What is unknown, NaN or infinite is null.

    `whatif_version` rises when a key changes its meaning or goes; new keys may appear without.
    """
    document = {"whatif_version": WHATIF_VERSION, "fp8debug_version": __version__, "path": path, **asdict(answer)}
    return document_text(document)


def render_whatif(answer: WhatIf, looks: Looks, *, run_path: str, top: int, per_layer: bool) -> str:
    """The whole answer, ending in a newline. `run_path` is how the commands name the run."""
    body = _layers(answer, looks, top) if per_layer else _summed(answer, looks)
    sections = (_head(answer, looks, run_path), body, _notes(answer, looks), _next(looks, run_path, per_layer))
    return "\n".join("\n".join(lines) + "\n" for section in sections if (lines := list(section)))


# Head and foot --------------------------------------------------------------------------------------------------------


def _head(answer: WhatIf, looks: Looks, run_path: str) -> Iterator[str]:
    yield looks.bold(f"WHAT IF {escape(run_path)}")
    for sentence in whatif_facts(answer):
        yield from wrap(sentence, looks.width)


def whatif_facts(answer: WhatIf) -> Iterator[str]:
    """What the figures are of, and what healthy ones are."""
    layers, steps = count(len(answer.layers), "layer"), _steps(answer.steps)
    if answer.n_histograms:
        yield f"{count(answer.n_histograms, 'histogram')} of {layers}{steps}."
    names = {fmt: healthy for entry in answer.operands for fmt, healthy in [(entry.fmt, entry.healthy_sqnr_db)]}
    healthy = [f"{value:.1f} dB in {fmt}" for fmt, value in names.items() if fmt in FORMATS]
    if healthy:
        formats = _told(common_formats(answer.operands))
        yield f"{formats}A healthy SQNR is {listed(healthy)}; a healthy gain is 1."


def _told(formats: dict[str, str]) -> str:
    tensors = {fmt: [tensor for tensor, name in formats.items() if name == fmt] for fmt in formats.values()}
    text = ", ".join(f"{listed(names)} in {fmt}" for fmt, names in tensors.items())
    return f"{text}. " if text else ""


def _steps(steps: Sequence[int]) -> str:
    if not steps:
        return ""
    if len(steps) <= 4:
        return f" at step{'s' if len(steps) > 1 else ''} {listed([str(step) for step in steps])}"
    return f" at {len(steps):,} steps from {steps[0]} to {steps[-1]}"


def _notes(answer: WhatIf, looks: Looks) -> Iterator[str]:
    if answer.notes:
        yield looks.bold("NOTES")
        for note in answer.notes:
            message = escape(note.message)
            text = f"{message}; this records it:" if note.command else with_full_stop(message)
            yield from wrap(f"- {text}", looks.width, hanging="  ")
            if note.command:
                yield f"    {escape(note.command)}"


def _next(looks: Looks, run_path: str, per_layer: bool) -> Iterator[str]:
    command = f"fp8debug whatif {shlex.quote(run_path)}"
    yield looks.bold("NEXT")
    if not per_layer:
        yield f"  {looks.dim('# the worst layers, one by one:')}"
        yield f"  {command} --per layer"
    yield f"  {looks.dim('# one parameter over a range:')}"
    yield f"  {command} --recipe delayed --sweep margin=0:4"
    yield f"  {looks.dim('# all of this for a program:')}"
    yield f"  {command} --json"


# Figures --------------------------------------------------------------------------------------------------------------


def _summed(answer: WhatIf, looks: Looks) -> Iterator[str]:
    yield looks.bold("SUMMED OVER LAYERS" if len(answer.layers) != 1 else escape(answer.layers[0]))
    yield from figure_lines(answer, answer.operands, answer.gemms, looks, whole=True)


def _layers(answer: WhatIf, looks: Looks, top: int) -> Iterator[str]:
    yield looks.bold("LAYERS, worst first")
    for place, layer in enumerate(answer.layers[:top], 1):
        yield ""
        operands = [entry for entry in answer.operands if entry.layer == layer]
        yield from _heading(place, layer, max((entry.db_lost or 0.0 for entry in operands), default=0.0), looks)
        gemms = [entry for entry in answer.gemms if entry.layer == layer]
        yield from figure_lines(answer, operands, gemms, looks, whole=False)
    left = len(answer.layers) - top
    if left > 0:
        yield ""
        yield f"  ... and {count(left, 'layer')} more: {looks.dim('--top N shows more')}"


def _heading(place: int, layer: str, lost: float, looks: Looks) -> Iterator[str]:
    number, loss = f"{place}.", f"{lost:.1f} dB lost at worst"
    name = escape(layer)
    blanks = looks.width - 3 - display_width(name) - len(loss)
    if blanks >= 2:
        yield f"{number:<3}{looks.bold(name)}{' ' * blanks}{loss}"
        return
    first, *rest = chunks(name, looks.width - 3)
    yield f"{number:<3}{looks.bold(first)}"
    yield from (f"   {looks.bold(piece)}" for piece in rest)
    yield f"   {loss}"
