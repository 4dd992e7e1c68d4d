"""Make the pictures of docs/concepts/: the formats as fp8debug has them, and two runs of sample_dumps/.

python docs/pictures.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from drawing import Picture, Scale, power

from fp8debug.analysis.run import Run, open_run
from fp8debug.formats import FORMATS
from fp8debug.formats.format import Float32Array, Format
from fp8debug.formats.scalar import decode_scalar
from fp8debug.metrics import Int64Array, RankedHistogram, sqnr_db
from fp8debug.recipes import CurrentScaling, scaled_cast

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
HEALTHY, OUTLIER = "gpt-healthy", "gpt-outlier"
LAYER, TENSOR, STEP = "blocks.1.fc1", "x", 100
E4M3, E5M2 = FORMATS["E4M3"], FORMATS["E5M2"]
COLOURS = ((E4M3, "blue"), (E5M2, "orange"))


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    with open_run(ROOT / "sample_dumps" / HEALTHY) as healthy, open_run(ROOT / "sample_dumps" / OUTLIER) as outlier:
        return {
            "grid.svg": grid(),
            "outlier.svg": distributions(healthy, outlier),
            "gap-steps.svg": gap_over_steps(healthy, outlier),
            "gap-sqnr.svg": sqnr_over_gap(healthy),
        }


# The numbers of the formats -----------------------------------------------------------------------------------------


def grid() -> str:
    """Every positive number of E4M3 and E5M2 on a line of octaves."""
    picture = Picture("Every positive number of E4M3 and of E5M2 on an axis of octaves", 720, 236)
    x = Scale(-17, 17, 60, 700)
    picture.across(x, [(e, power(e)) for e in range(-16, 17, 4)], 40, 186)
    for (fmt, colour), y in zip(COLOURS, (80, 150), strict=True):
        values = [decode_scalar(code, fmt) for code in range(1, fmt.max_code + 1)]
        for value in values:
            half = 14 if value >= fmt.min_normal else 8
            picture.bar(x(math.log2(value)) - 0.6, y - half, 1.2, 2 * half, colour)
        picture.text(52, y + 5, fmt.name, "end", f"title {colour}")
        for value, words, anchor in (
            (fmt.min_subnormal, f"smallest {power(math.log2(fmt.min_subnormal))}", "start"),
            (fmt.min_normal, f"full precision from {power(math.log2(fmt.min_normal))}", "start"),
            (fmt.max, f"largest {fmt.max:g}", "end"),
        ):
            above = value != fmt.min_normal
            picture.text(x(math.log2(value)), y - 20 if above else y + 28, words, anchor, "soft")
    picture.text(360, 226, "magnitude; one tick is one number that the format has", "middle", "soft")
    return picture.svg()


# An outlier hides underflow -----------------------------------------------------------------------------------------


def distributions(healthy: Run, outlier: Run) -> str:
    """One operand in two runs, before and after delayed scaling, elements per octave."""
    picture = Picture(
        f"{LAYER} {TENSOR} before and after delayed scaling to E4M3: in a healthy run nearly all values survive, "
        "beside an outlier most of them become zero",
        720, 470,
    )  # fmt: skip
    for run, top, words in ((healthy, 30, "healthy"), (outlier, 250, "with an outlier")):
        _distribution(picture, run, top, words)
    picture.text(
        400, 462, "elements in each octave of their magnitude; grey: before, blue: after the cast", "middle", "soft"
    )
    return picture.svg()


def _distribution(picture: Picture, run: Run, top: float, words: str) -> None:
    values, counts = histogram(run)
    scale = scale_of(run, STEP)
    after, _ = scaled_cast(values, np.float32(scale), E4M3)
    x, y = Scale(-17, 19.5, 96, 700), Scale(0, 5, top + 150, top + 22)
    picture.text(96, top + 4, words, kind="title")
    picture.across(x, [(e, power(e)) for e in range(-16, 20, 4)], top + 12, top + 150)
    picture.up(y, [(n, f"{10**n:,}") for n in (0, 2, 4)], 96, 700)
    for spread, kind, inset in ((octaves(values, counts), "before", 1.0), (octaves(after, counts), "blue", 4.0)):
        for octave, count in spread.items():
            height = y(0) - y(math.log10(count))
            picture.bar(x(octave) + inset, y(0) - height, x(octave + 1) - x(octave) - 2 * inset, height, kind)
    for value in (E4M3.min_subnormal / scale, E4M3.max / scale):
        picture.line(x(math.log2(value)), top + 12, x(math.log2(value)), top + 150, "mark")
    largest = x(math.log2(E4M3.max / scale))
    side = (largest + 5, "start") if largest < 500 else (largest - 5, "end")
    picture.text(side[0], top + 24, "largest of E4M3", side[1], "soft")
    picture.text(x(math.log2(E4M3.min_subnormal / scale)) - 5, top + 24, "smallest", "end", "soft")
    sqnr = sqnr_at(RankedHistogram(values, counts), scale, E4M3)
    lost = int(counts[(values != 0) & (after == 0)].sum()) / int(counts[values != 0].sum())
    told = f"{100 * lost:.1f} % become zero. SQNR {sqnr:.1f} dB, "
    picture.text(700, top + 4, told + f"of the smallest 99 %: {low_sqnr(run):.1f} dB", "end", "soft")


# The scale gap ------------------------------------------------------------------------------------------------------


def gap_over_steps(healthy: Run, outlier: Run) -> str:
    """The gap of delayed scaling over the steps of two runs."""
    picture = Picture(
        f"Scale gap of delayed scaling over 200 steps, {LAYER} {TENSOR}: within a bit of zero in a healthy run, one to "
        "two bits below zero beside an outlier",
        720, 300,
    )  # fmt: skip
    x, y = Scale(0, 199, 70, 700), Scale(-2.5, 1, 230, 30)
    picture.across(x, [(step, str(step)) for step in range(0, 200, 50)], 30, 230)
    picture.up(y, [(gap, f"{gap:+d}") for gap in (-2, -1, 1)] + [(0, "0")], 70, 700)
    picture.text(78, 46, "above 0: the largest values are clipped", kind="soft")
    picture.text(78, 222, "below 0: range is wasted, small values become zero", kind="soft")
    for run, colour in ((healthy, "blue"), (outlier, "orange")):
        picture.curve([(x(step), y(min(gap, 1.0))) for step, gap in gaps(run)], colour)
    picture.text(700, 46, "healthy run", "end", "title blue")
    picture.text(700, 64, "run with an outlier", "end", "title orange")
    picture.text(385, 284, "step; gap in bits, 0 is the scale that fits the tensor", "middle", "soft")
    return picture.svg()


def sqnr_over_gap(healthy: Run) -> str:
    """What a scale that is off by so many bits leaves of an operand."""
    picture = Picture(
        f"SQNR against the scale gap, {LAYER} {TENSOR} of a healthy run: flat for gaps below zero, falling at once "
        "above",
        720, 320,
    )  # fmt: skip
    x, y = Scale(-16, 3, 70, 700), Scale(0, 35, 250, 30)
    picture.across(x, [(gap, f"{gap:+d}" if gap else "0") for gap in range(-16, 4, 2)], 30, 250)
    picture.up(y, [(db, f"{db} dB") for db in range(0, 36, 10)], 70, 700)
    values, counts = histogram(healthy)
    ranked = RankedHistogram(values, counts)
    for fmt, colour in COLOURS:
        ideal = float(CurrentScaling().scale(float(np.abs(values).max()), fmt))
        points = [(gap, sqnr_at(ranked, ideal * 2.0**gap, fmt)) for gap in _quarters(-16, 3)]
        picture.curve([(x(gap), y(db)) for gap, db in points], colour)
    picture.text(700, 46, "E4M3", "end", "title blue")
    picture.text(700, 64, "E5M2", "end", "title orange")
    picture.text(x(0), 24, "the scale that fits", "middle", "soft")
    picture.line(x(0), 30, x(0), 250, "mark")
    picture.text(385, 304, "scale gap in bits: below 0 the scale is too small, above 0 too large", "middle", "soft")
    return picture.svg()


def sqnr_at(ranked: RankedHistogram, scale: float, fmt: Format) -> float:
    """dB that the operand keeps under the scale."""
    known = sqnr_db(ranked.error_sums(np.float32(scale), fmt))
    assert known is not None
    return known


def _quarters(first: int, last: int) -> Sequence[float]:
    return [quarter / 4 for quarter in range(4 * first, 4 * last + 1)]


# From the runs ------------------------------------------------------------------------------------------------------

_WHERE = f"layer = '{LAYER}' and tensor = '{TENSOR}'"


def histogram(run: Run) -> tuple[Float32Array, Int64Array]:
    """(values, counts) of the operand at the step."""
    rows = run.con.execute(f"select value, count from histograms where {_WHERE} and step = {STEP} order by value")
    columns = rows.fetchnumpy()
    return columns["value"].astype(np.float32), columns["count"].astype(np.int64)


def scale_of(run: Run, step: int) -> float:
    """The scale of delayed scaling at the step."""
    return _one(run, f"select scale from tensor_errors where {_WHERE} and recipe = 'delayed' and step = {step}")


def low_sqnr(run: Run) -> float:
    """dB of the smallest 99 % at the step."""
    return _one(run, f"select sqnr_low_db from tensor_errors where {_WHERE} and recipe = 'delayed' and step = {STEP}")


def gaps(run: Run) -> list[tuple[int, float]]:
    """(step, bits) wherever the gap is known."""
    found: list[tuple[int, float]] = run.con.execute(
        f"select step, scale_gap_bits from tensor_errors where {_WHERE} and recipe = 'delayed' "
        "and scale_gap_bits is not null order by step"
    ).fetchall()
    return found


def octaves(values: Float32Array, counts: Int64Array) -> dict[int, int]:
    """Exponent -> elements whose magnitude is in [2^e, 2^(e+1)); zeros are in none."""
    spread: dict[int, int] = {}
    exponents = np.frexp(values)[1] - 1
    for exponent, value, count in zip(exponents.tolist(), values.tolist(), counts.tolist(), strict=True):
        if value:
            spread[exponent] = spread.get(exponent, 0) + count
    return spread


def _one(run: Run, query: str) -> float:
    ((value,),) = run.con.execute(query).fetchall()
    return float(value)


if __name__ == "__main__":
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
        print(f"Wrote docs/images/{name}")
