"""The figures of a what-if as a matrix: which metric stands where, and what deserves a colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from fp8debug.analysis.whatif import GemmErrors, OperandErrors, WhatIf
from fp8debug.cli.render.matrix import Cell, Group, matrix_lines
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape
from fp8debug.formats import FORMATS

_UNKNOWN = Cell()
_GEMMS = ("fprop", "dgrad", "wgrad")
_MANY = 0.05
_CLIPPED = 0.001

_ByOperand = dict[tuple[str, str], OperandErrors]
_ByGemm = dict[tuple[str, str, str], GemmErrors]


def figure_lines(
    answer: WhatIf, operands: Sequence[OperandErrors], gemms: Sequence[GemmErrors], looks: Looks, *, whole: bool
) -> Iterator[str]:
    """The matrix of one layer, or of all; groups in which nothing stands out are left out unless `whole`."""
    recipes, groups = figures(answer, operands, gemms, whole=whole)
    yield from matrix_lines("recipe", [escape(recipe) for recipe in recipes], groups, looks)


def figures(
    answer: WhatIf, operands: Sequence[OperandErrors], gemms: Sequence[GemmErrors], *, whole: bool
) -> tuple[list[str], list[Group]]:
    """The recipes, one a row, and the groups of columns beside them."""
    by_operand = {(entry.recipe, entry.tensor): entry for entry in operands if entry.gemm is None}
    by_gemm = {(entry.recipe, entry.accumulation, entry.gemm): entry for entry in gemms}
    known = {recipe for recipe, *_ in (*by_operand, *by_gemm)}
    recipes = [recipe for recipe in answer.recipes if recipe in known]
    candidates = [
        *_precision(recipes, answer.tensors, by_operand),
        *_gemm_groups(recipes, by_gemm),
        *_losses(recipes, answer.tensors, by_operand, whole=whole),
    ]
    return recipes, [group for group in candidates if any(cell != _UNKNOWN for row in group.rows for cell in row)]


def _precision(recipes: Sequence[str], tensors: Sequence[str], entries: _ByOperand) -> Iterator[Group]:
    if not common_formats(entries.values()):
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


def common_formats(entries: Iterable[OperandErrors]) -> dict[str, str]:
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
