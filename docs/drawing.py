"""A little SVG: axes, marks, words. Pictures carry their own light and dark colours, and a text to be read aloud."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Told apart by the colour-blind too (Okabe and Ito), in the light and in the dark; what they mean stands beside them.
_STYLE = """
.panel { fill: #ffffff; } .frame { stroke: #d0d4da; fill: none; } .grid { stroke: #e4e7eb; }
text { font: 13px sans-serif; fill: #24292f; } .soft { fill: #57606a; } .title { font-weight: bold; }
.blue { fill: #0072b2; } .orange { fill: #b34e00; } .line { fill: none; stroke-width: 2; }
.line.blue { fill: none; stroke: #0072b2; } .line.orange { fill: none; stroke: #b34e00; }
.before { fill: #9aa4b2; } .mark { stroke: #57606a; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
.panel { fill: #1b1f24; } .frame { stroke: #444c56; } .grid { stroke: #30363d; }
text { fill: #e6edf3; } .soft { fill: #a9b3be; }
.blue { fill: #56b4e9; } .orange { fill: #f0a040; }
.line.blue { stroke: #56b4e9; } .line.orange { stroke: #f0a040; }
.before { fill: #6b7684; } .mark { stroke: #a9b3be; }
}
"""


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(exponent: float) -> str:
    """`2⁻⁹`."""
    return "2" + f"{exponent:g}".translate(_RAISED)


@dataclass(frozen=True, slots=True)
class Scale:
    """From a range of values to a range of pixels."""

    first: float
    last: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.first) / (self.last - self.first) * (self.end - self.start)


@dataclass(slots=True)
class Picture:
    """Collects what is drawn; `x` and `y` are in pixels from the upper left corner."""

    title: str
    """What it shows, in one sentence."""
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> None:
        """Words whose baseline begins, has its middle or ends at the place."""
        look = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{look}>{html.escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """One straight line."""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A filled rectangle."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect {place} class="{kind}"/>')

    def curve(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """A line through the points."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{joined}" class="line {kind}"/>')

    def across(self, x: Scale, ticks: Sequence[tuple[float, str]], y1: float, y2: float) -> None:
        """Upright lines of a grid from `y1` down to `y2`, with their words below."""
        for value, words in ticks:
            self.line(x(value), y1, x(value), y2, "grid")
            self.text(x(value), y2 + 17, words, "middle", "soft")

    def up(self, y: Scale, ticks: Sequence[tuple[float, str]], x1: float, x2: float) -> None:
        """Level lines of a grid from `x1` to `x2`, with their words on the left."""
        for value, words in ticks:
            self.line(x1, y(value), x2, y(value), "grid")
            self.text(x1 - 8, y(value) + 4, words, "end", "soft")

    def svg(self) -> str:
        """The whole file."""
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-labelledby="t">\n<title id="t">{html.escape(self.title)}</title>\n<style>{_STYLE}</style>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="8" class="panel"/>\n{body}\n</svg>\n'
        )
