"""One dot a tensor, in the order of the file: a picture that needs no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.cli.render.html.elements import NOTHING, Markup, element, joined, text

_WIDTH, _HEIGHT, _LEFT, _EDGE = 1000.0, 220.0, 64.0, 10.0
_TICKS = 5
MOST_DOTS = 1500


@dataclass(frozen=True, slots=True)
class Dot:
    """A tensor and its number; `low` and `high` are those of its blocks, where it has several."""

    name: str
    value: float
    low: float
    high: float
    is_bad: bool = False


def dots(title: str, unit: str, found: Sequence[Dot], *, healthy: float | None = None) -> Markup:
    """The picture with its title; nothing where there is no finite number.

    Args:
        title: what the numbers are.
        unit: of the numbers.
        found: one a tensor; of more than `MOST_DOTS` every n-th is drawn, and all bad ones.
        healthy: a number to draw a line at.
    """
    shown = [dot for dot in _thinned(found) if math.isfinite(dot.value)]
    if not shown:
        return NOTHING
    ends = [edge for dot in shown for edge in (dot.low, dot.high, dot.value) if math.isfinite(edge)]
    low, high = min([*ends, *_known(healthy)]), max([*ends, *_known(healthy)])
    margin = (high - low) * 0.05 or max(abs(high) * 0.05, 0.5)
    y = _Axis(low - margin, high + margin)
    step = (_WIDTH - _LEFT - _EDGE) / max(len(shown), 1)
    marks = [_mark(dot, _LEFT + step * (at + 0.5), y, unit) for at, dot in enumerate(shown)]
    line = [] if healthy is None else [_line(y.at(healthy), "healthy")]
    picture = element(
        "svg",
        *(joined([_line(y.at(tick), "grid"), _label(tick, y)]) for tick in y.ticks()),
        *line,
        *marks,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label=f"{title}, {len(shown):,} tensors from {low:.4g} to {high:.4g} {unit}",
    )
    left = len(found) - len(shown)
    more = f" {left:,} of {len(found):,} are not drawn." if left else ""
    caption = element(
        "figcaption", element("b", text(title)), text(f", {unit}; one dot a tensor, in the order of the file.{more}")
    )
    return element("figure", caption, picture, class_="chart whole dots")


@dataclass(frozen=True, slots=True)
class _Axis:
    """From numbers to heights."""

    low: float
    high: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _EDGE + (1 - share) * (_HEIGHT - 2 * _EDGE)

    def ticks(self) -> list[float]:
        """Round numbers, about `_TICKS` of them."""
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * of for of in (1, 2, 5, 10) if power * of >= rough)
        first = math.ceil(self.low / step)
        return [step * n for n in range(first, math.floor(self.high / step) + 1)]


def _thinned(found: Sequence[Dot]) -> list[Dot]:
    every = -(-len(found) // MOST_DOTS)
    return [dot for at, dot in enumerate(found) if at % max(every, 1) == 0 or dot.is_bad]


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _mark(dot: Dot, x: float, y: _Axis, unit: str) -> Markup:
    several = f" ({dot.low:.4g} to {dot.high:.4g})" if dot.low != dot.high else ""
    says = element("title", text(f"{dot.name}: {dot.value:.4g} {unit}{several}"))
    parts = [element("circle", cx=f"{x:.1f}", cy=f"{y.at(dot.value):.1f}", r="3")]
    if dot.low != dot.high and math.isfinite(dot.low) and math.isfinite(dot.high):
        ends = {"y1": f"{y.at(dot.low):.1f}", "y2": f"{y.at(dot.high):.1f}"}
        parts.insert(0, element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", **ends))
    return element("g", says, *parts, class_="dot bad" if dot.is_bad else "dot")


def _line(y: float, class_: str) -> Markup:
    at = f"{y:.1f}"
    return element("line", x1=f"{_LEFT:g}", x2=f"{_WIDTH - _EDGE:g}", y1=at, y2=at, class_=class_)


def _label(tick: float, y: _Axis) -> Markup:
    at = {"x": f"{_LEFT - 8:g}", "y": f"{y.at(tick) + 4:.1f}"}
    return element("text", text(f"{tick:.6g}"), **at)
