"""A what-if as text or JSON: recipes are rows, operands and GEMMs columns."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

from fp8debug import __version__
from fp8debug.analysis.whatif import GemmErrors, OperandErrors, WhatIf
from fp8debug.cli.render.json import without_nan
from fp8debug.cli.render.matrix import Cell, Group, matrix_lines
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import chunks, display_width, escape, wrap
from fp8debug.cli.render.wording import count, listed, with_full_stop
from fp8debug.formats import FORMATS

WHATIF_VERSION = 1

_UNKNOWN = Cell()
_GEMMS = ("fprop", "dgrad", "wgrad")
_MANY = 0.05
_CLIPPED = 0.001


def whatif_json(answer: WhatIf, path: str) -> str:
    """One object and a newline, ratios beside the sums they are of. What is unknown, NaN or infinite is null.

    `whatif_version` rises when a key changes its meaning or goes; new keys may appear without.
    """
    document = {"whatif_version": WHATIF_VERSION, "fp8debug_version": __version__, "path": path, **asdict(answer)}
    return json.dumps(without_nan(document), indent=1, allow_nan=False) + "\n"


def render_whatif(answer: WhatIf, looks: Looks, *, run_path: str, top: int, per_layer: bool) -> str:
    """The whole answer, ending in a newline. `run_path` is how the commands name the run."""
    body = _layers(answer, looks, top) if per_layer else _summed(answer, looks)
    sections = (_head(answer, looks, run_path), body, _notes(answer, looks), _next(looks, run_path, per_layer))
    return "\n".join("\n".join(lines) + "\n" for section in sections if (lines := list(section)))


# Head and foot --------------------------------------------------------------------------------------------------------


def _head(answer: WhatIf, looks: Looks, run_path: str) -> Iterator[str]:
    yield looks.bold(f"WHAT IF {escape(run_path)}")
    layers, steps = count(len(answer.layers), "layer"), _steps(answer.steps)
    if answer.n_histograms:
        yield from wrap(f"{count(answer.n_histograms, 'histogram')} of {layers}{steps}.", looks.width)
    names = {fmt: healthy for entry in answer.operands for fmt, healthy in [(entry.fmt, entry.healthy_sqnr_db)]}
    healthy = [f"{value:.1f} dB in {fmt}" for fmt, value in names.items() if fmt in FORMATS]
    if healthy:
        formats = _told(_common_formats(answer.operands))
        yield from wrap(f"{formats}A healthy SQNR is {listed(healthy)}; a healthy gain is 1.", looks.width)


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
    yield from _figures(answer, answer.operands, answer.gemms, looks, whole=True)


def _layers(answer: WhatIf, looks: Looks, top: int) -> Iterator[str]:
    yield looks.bold("LAYERS, worst first")
    for place, layer in enumerate(answer.layers[:top], 1):
        yield ""
        operands = [entry for entry in answer.operands if entry.layer == layer]
        yield from _heading(place, layer, max((entry.db_lost or 0.0 for entry in operands), default=0.0), looks)
        gemms = [entry for entry in answer.gemms if entry.layer == layer]
        yield from _figures(answer, operands, gemms, looks, whole=False)
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


def _figures(
    answer: WhatIf, operands: Sequence[OperandErrors], gemms: Sequence[GemmErrors], looks: Looks, *, whole: bool
) -> Iterator[str]:
    """The matrix of one layer, or of all; groups in which nothing stands out are left out unless `whole`."""
    by_operand = {(entry.recipe, entry.tensor): entry for entry in operands if entry.gemm is None}
    by_gemm = {(entry.recipe, entry.accumulation, entry.gemm): entry for entry in gemms}
    known = {recipe for recipe, *_ in (*by_operand, *by_gemm)}
    recipes = [recipe for recipe in answer.recipes if recipe in known]
    groups = [
        *_precision(recipes, answer.tensors, by_operand),
        *_gemm_groups(recipes, by_gemm),
        *_losses(recipes, answer.tensors, by_operand, whole=whole),
    ]
    yield from matrix_lines("recipe", [escape(recipe) for recipe in recipes], groups, looks)


_ByOperand = dict[tuple[str, str], OperandErrors]
_ByGemm = dict[tuple[str, str, str], GemmErrors]


def _precision(recipes: Sequence[str], tensors: Sequence[str], entries: _ByOperand) -> Iterator[Group]:
    if not _common_formats(entries.values()):
        yield _group("format", recipes, tensors, entries, lambda entry: Cell(entry.fmt))
    yield _group("SQNR, dB", recipes, tensors, entries, lambda entry: _decibels(entry.sqnr_db, entry))


def _losses(recipes: Sequence[str], tensors: Sequence[str], entries: _ByOperand, *, whole: bool) -> Iterator[Group]:
    cells: dict[str, Callable[[OperandErrors], Cell]] = {
        "smallest 99 %, dB": lambda entry: _decibels(entry.sqnr_low_db, entry),
        "become zero, %": lambda entry: _share(entry.underflow, _MANY),
        "clipped, %": lambda entry: _share(entry.overflow, _CLIPPED),
        "gain": _gain,
    }
    for title, cell in cells.items():
        group = _group(title, recipes, tensors, entries, cell)
        if whole or any(shown.is_bad or shown.is_odd for row in group.rows for shown in row):
            yield group


def _group(
    title: str,
    recipes: Sequence[str],
    tensors: Sequence[str],
    entries: _ByOperand,
    cell: Callable[[OperandErrors], Cell],
) -> Group:
    rows = tuple(
        tuple(cell(entries[recipe, tensor]) if (recipe, tensor) in entries else _UNKNOWN for tensor in tensors)
        for recipe in recipes
    )
    return Group(title, tuple(tensors), rows)


def _gemm_groups(recipes: Sequence[str], entries: _ByGemm) -> Iterator[Group]:
    for accumulation in dict.fromkeys(accumulation for _, accumulation, _ in entries):
        heads = [gemm for gemm in _GEMMS if any(key[1:] == (accumulation, gemm) for key in entries)]
        rows = tuple(tuple(_error(entries.get((recipe, accumulation, gemm))) for gemm in heads) for recipe in recipes)
        title = "GEMM error, %" if accumulation == "exact" else f"{accumulation}, %"
        yield Group(title, tuple(heads), rows)


def _common_formats(entries: Iterable[OperandErrors]) -> dict[str, str]:
    """Format by tensor where it is the same under every recipe; empty where some differ."""
    formats: dict[str, str] = {}
    for entry in entries:
        if formats.setdefault(entry.tensor, entry.fmt) != entry.fmt:
            return {}
    return formats


def _decibels(value: float | None, entry: OperandErrors) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("exact") if entry.exact and entry.n_nonzero else _UNKNOWN
    floor = FORMATS[entry.fmt].rounding_floor_sqnr_db if entry.fmt in FORMATS else -math.inf
    return Cell(f"{value:.1f}", is_bad=value < floor)


def _share(value: float | None, much: float) -> Cell:
    if value is None:
        return _UNKNOWN
    percent = 100 * value
    text = (
        "0"
        if percent == 0
        else "<0.01"
        if percent < 0.005
        else f"{percent:.2f}"
        if percent < 9.995
        else f"{percent:.1f}"
    )
    return Cell(text, is_odd=value > much)


def _gain(entry: OperandErrors) -> Cell:
    if entry.gain is None:
        return _UNKNOWN
    bound = FORMATS[entry.fmt].max_gain_error if entry.fmt in FORMATS else math.inf
    digits = ".3f" if abs(entry.gain) < 100 else ".3g"
    return Cell(f"{entry.gain:{digits}}", is_bad=abs(entry.gain - 1) > bound)


def _error(entry: GemmErrors | None) -> Cell:
    if entry is None or entry.rel_l2 is None:
        return _UNKNOWN
    percent = 100 * entry.rel_l2
    return Cell("0" if entry.exact else f"{percent:.2f}" if percent < 99.995 else f"{percent:.3g}")
