"""What a GEMM's result loses on the sampled rows and columns: the cells of the table `gemms`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fp8debug.formats import Format
from fp8debug.hooks.probe.operand import Float64Array, Operand
from fp8debug.hooks.probe.product import exact_product, product
from fp8debug.hooks.probe.quantized import Quantized, quantized
from fp8debug.recipes import Recipe

EMULATED_LINES = 16
"""Rows, and columns, of a result where any accumulation is emulated: that costs a hundred times an exact product."""


class _Choice(NamedTuple):
    """Formats and scales of the two operands."""

    fmt: Format
    scale: np.float32 | None
    other_fmt: Format
    other_scale: np.float32 | None
    alternate: bool


def gemm_cells(
    gemm: str, first: Operand, second: Operand, recipes: Sequence[Recipe], accumulations: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Cells of the table `gemms` after the record key, one row a recipe, format and accumulation that goes together.

    Args:
        gemm: fprop | dgrad | wgrad.
        first, second: operands as `fp8debug.gemms.GEMMS` has them; the result's rows and columns are their lines.
        recipes: a recipe whose scale is not known for both operands gives no row.
        accumulations: of exact, hopper-fast, hopper-promoted; `product` knows which suits a recipe.
    """
    if set(accumulations) != {"exact"}:  # exact ones too: figures side by side must be of one sample
        first, second = first.thinned(EMULATED_LINES), second.thinned(EMULATED_LINES)
    sample = f"rows {first.lines.text}, columns {second.lines.text}"
    with np.errstate(all="ignore"):  # infinities and NaN are data
        reference = _Reference(first, second)
        for recipe in recipes:
            others: dict[Format, Quantized] = {}
            for choice in _choices(recipe, first, second):
                a = quantized(first, recipe, choice.fmt, choice.scale)
                if choice.other_fmt not in others:
                    others[choice.other_fmt] = quantized(second, recipe, choice.other_fmt, choice.other_scale)
                for accumulation in accumulations:
                    q = product(a, others[choice.other_fmt], accumulation)
                    if q is not None:
                        formats = (choice.fmt.name, choice.other_fmt.name, choice.alternate)
                        head = (gemm, recipe.text, *formats, accumulation, sample, *q.shape, first.depth)
                        yield (*head, *reference.sums(q))


def _choices(recipe: Recipe, first: Operand, second: Operand) -> Iterator[_Choice]:
    others = {alternate: (fmt, scale) for fmt, alternate, scale in second.formats(recipe)}
    for fmt, alternate, scale in first.formats(recipe):
        other = others.get(alternate, others.get(False))
        if other is not None:
            yield _Choice(fmt, scale, *other, alternate)


class _Reference:
    """The sampled results in high precision."""

    def __init__(self, first: Operand, second: Operand) -> None:
        self._y = exact_product(first.exact, second.exact)
        self._a2, self._b2 = np.square(first.exact), np.square(second.exact)
        self._x2w2 = float(self._a2.sum(axis=0) @ self._b2.sum(axis=0))

    def sums(self, q: Float64Array) -> tuple[Any, ...]:
        """n, n_nonfinite, sum_y2, sum_q2, sum_yq, sum_err2, sum_x2w2."""
        y, x2w2 = self._y, self._x2w2
        finite = np.isfinite(y) & np.isfinite(q)
        n = int(finite.sum())
        if n < y.size:
            y, q, x2w2 = y[finite], q[finite], float(exact_product(self._a2, self._b2)[finite].sum())
        err = y - q
        pairs = ((y, y), (q, q), (y, q), (err, err))
        return (n, finite.size - n, *(float(np.vdot(u, v)) for u, v in pairs), x2w2)
