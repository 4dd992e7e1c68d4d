"""The numbers that the rules compare with: defaults, what they mean and where they come from.

Those of a format are written out, not taken from `formats`: a report need not wait for numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb

from fp8debug.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number of the rules. In SQL it is `getvariable('<name>')`."""

    name: str
    default: float
    meaning: str
    source: str


_ROUNDING = "worst case of rounding inside the normal range"
_TUNED = "measured on healthy small GPTs and SmolLM2: flags at most 2 % there and still finds planted faults"
_PERSISTENCE = "one bad step happens in healthy runs"

_ALL = (
    Threshold("sqnr_floor_e4m3", 24.6, "hit below this SQNR in E4M3, dB", _ROUNDING),
    Threshold("sqnr_floor_e5m2", 19.1, "hit below this SQNR in E5M2, dB", _ROUNDING),
    Threshold("gain_bound_e4m3", 1 / 17, "hit when |gain - 1| is above this in E4M3", _ROUNDING),
    Threshold("gain_bound_e5m2", 1 / 9, "hit when |gain - 1| is above this in E5M2", _ROUNDING),
    Threshold("gap_bits", 1.0, "hit when the scale is more bits above that of current scaling", _TUNED),
    Threshold("underflow", 0.05, "hit above this underflow, if the small values are below the SQNR floor too", _TUNED),
    Threshold("min_nonzero", 256, "records with fewer non-zero values are not judged", "too few to prove anything"),
    Threshold("warmup_rolls", 16, "first rolls of simulated delayed scaling that are not judged", "scale 1 at start"),
    Threshold("min_steps", 3, "steps that must hit", _PERSISTENCE),
    Threshold("min_steps_short", 2, "steps that must hit when few were observed", _PERSISTENCE),
    Threshold("short_run_steps", 20, "fewer observed steps than this are few", _PERSISTENCE),
    Threshold("min_share", 0.05, "share of the observed steps that must hit", _PERSISTENCE),
    Threshold("baseline_e4m3", 31.5, "healthy SQNR in E4M3, dB", "bell shapes at a perfect scale"),
    Threshold("baseline_e5m2", 25.6, "healthy SQNR in E5M2, dB", "bell shapes at a perfect scale"),
    Threshold("watch_underflow", 0.05, "watch above this underflow", "a common rule; fires in healthy runs too"),
    Threshold("watch_overflow", 0.001, "watch above this overflow", "0.4 % was enough to ruin a real run"),
    Threshold("watch_gap_bits", 0.5, "watch above this scale gap, bits", "half a bit already clips the tail"),
    Threshold("watch_sqnr_loss_db", 3.0, "watch when the SQNR is this far below the baseline, dB", "half the signal"),
)

THRESHOLDS: dict[str, Threshold] = {threshold.name: threshold for threshold in _ALL}


def resolve(overrides: Mapping[str, float] | None = None) -> dict[str, float]:
    """Defaults with `overrides` put over them.

    Raises:
        UsageError: an unknown name, or a value that is not a finite number.
    """
    values = {name: threshold.default for name, threshold in THRESHOLDS.items()}
    for name, value in (overrides or {}).items():
        if name not in THRESHOLDS:
            close = nearest(name, THRESHOLDS)
            hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(THRESHOLDS)}"
            raise UsageError(f"unknown threshold {name!r}; {hint}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UsageError(f"threshold {name} is {value!r}; expected a finite number such as {values[name]:g}")
        values[name] = float(value)
    return values


def of_format(values: Mapping[str, float], name: str, fmt: str) -> float:
    """The one of a format that is judged, as the macro `per_fmt` has it: `sqnr_floor` in E4M3FNUZ is that of E4M3."""
    return values[f"{name}_{fmt.removesuffix('FNUZ').lower()}"]


def set_variables(con: duckdb.DuckDBPyConnection, values: Mapping[str, float]) -> None:
    """Make each threshold readable in SQL as `getvariable('<name>')`, a DOUBLE."""
    con.execute(";".join(f"set variable {name} = {float(value)!r}::double" for name, value in values.items()))
