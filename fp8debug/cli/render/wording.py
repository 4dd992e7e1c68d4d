"""Numbers, steps and operands in the words that a person reads."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path

from fp8debug.cli.render.tables import escape
from fp8debug.storage import RunPath

RUN_STATUS = {
    "closed": "finished",
    "running": "still running",
    "killed": "killed: its process is gone and never closed it",
    "failed": "the script failed",
    "interrupted": "interrupted",
    "disabled": "fp8debug switched itself off before the end",
    "imported": "imported from logs of another tool",
}

# A share or a factor is telling however small it is; of these so little is a rounding error.
_ABSOLUTE, _NOTHING = ("dB", "bits"), 1e-3


@dataclass(frozen=True, slots=True)
class Metric:
    """How a metric is shown: its name for people, its unit, the factor from stored to shown values."""

    title: str
    unit: str
    digits: int
    factor: float = 1.0

    def text(self, value: float | None) -> str:
        """The value with its unit; `-` when it is unknown."""
        if value is None or not math.isfinite(value):
            return "-"
        number = value * self.factor
        if number == 0 or (self.unit in _ABSOLUTE and abs(number) < _NOTHING):
            shown = "0"
        elif abs(number) < 10.0**-self.digits:
            shown = f"{number:.1g}"
        else:
            shown = f"{number:.{self.digits}f}"
        return f"{shown} {self.unit}".rstrip()


METRICS = {
    "sqnr_db": Metric("SQNR of all values", "dB", 1),
    "sqnr_low_db": Metric("SQNR of the smallest 99 %", "dB", 1),
    "underflow": Metric("non-zeros that become zero", "%", 1, 100.0),
    "overflow": Metric("values clipped", "%", 2, 100.0),
    "gain": Metric("gain (values come back times)", "", 3),
    "scale_gap_bits": Metric("scale above the ideal one", "bits", 1),
}


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 step`, `2 steps`, `12,000 steps`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(words: list[str] | tuple[str, ...], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def step_range(first: int, last: int) -> str:
    """`step 7`, `steps 3 to 90`."""
    return f"step {first}" if first == last else f"steps {first} to {last}"


def number(value: float | None) -> str:
    """A loss or a norm: four significant digits."""
    return "unknown" if value is None else f"{value:.4g}"


def operand(layer: str, tensor: str) -> str:
    """A tensor of a layer, safe to print."""
    return f"{escape(layer)} {escape(tensor)}"


def shown_path(path: RunPath) -> str:
    """The path as a person would type it: relative when it lies below the working directory."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def with_full_stop(text: str) -> str:
    """The text as a sentence; its first word may be a name and stays as it is."""
    return text if text.endswith((".", "!", "?", "...")) else text + "."
