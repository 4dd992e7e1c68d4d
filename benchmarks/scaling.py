"""How seconds and memory of a report grow from ten thousand to ten million tensor records.

    python benchmarks/scaling.py [--largest 7] [--keep FOLDER] [--check] [--markdown FILE] [--picture FILE]

The runs are those of `big_run.py`, with framework's scales and short histograms; each is reported on by `fp8debug
report --json` in a process of its own. Of its processor time, which other work on the machine disturbs least, the
exponent is fitted over the sizes from a hundred thousand records on: below, starting Python is most of it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path

import duckdb
import pages
from big_run import Measured, make_run, measure

SMALLEST, FITTED_FROM, N_VALUES = 4, 5, 8
MOST_EXPONENT = 1.1
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "scaling.svg"

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 380, 70, 30, 610, 320
_STYLE = "font-family:sans-serif;font-size:13px"


def points(folder: Path, largest: int) -> dict[int, Measured]:
    """By exponent of ten, what the report on a run of so many records takes."""
    found = {}
    for exponent in range(SMALLEST, largest + 1):
        path = folder / f"1e{exponent}"
        if not path.exists():
            make_run(path, 10**exponent, "framework", N_VALUES)
        found[exponent] = min((measure(path) for _ in range(3 if exponent < 7 else 1)), key=lambda m: m.cpu_s)
    return found


def fitted_exponent(found: dict[int, Measured]) -> float:
    """Slope of log(CPU seconds) over log(records)."""
    xs = [float(exponent) for exponent in found if exponent >= FITTED_FROM]
    ys = [math.log10(found[int(x)].cpu_s) for x in xs]
    return statistics.linear_regression(xs, ys).slope


def draw(found: dict[int, Measured], slope: float) -> str:
    """CPU seconds over records, both axes logarithmic, as SVG; memory is written beside each point."""
    exponents = list(found)
    logs = {exponent: math.log10(m.cpu_s) for exponent, m in found.items()}
    low, high = math.floor(min(logs.values())), math.ceil(max(logs.values()))

    def x(exponent: float) -> float:
        return LEFT + (exponent - exponents[0] + 0.3) / (exponents[-1] - exponents[0] + 0.6) * (RIGHT - LEFT)

    def y(log: float) -> float:
        return BOTTOM - (log - low) / (high - low) * (BOTTOM - TOP)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" style="{_STYLE}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for log in range(low, high + 1):
        lines.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y(log):.1f}" y2="{y(log):.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(log) + 4:.1f}" text-anchor="end">{10.0**log:g} s</text>')
    lines += [f'<text x="{x(e):.1f}" y="{BOTTOM + 22}" text-anchor="middle">{10**e:,}</text>' for e in exponents]
    path = " ".join(f"{x(exponent):.1f},{y(log):.1f}" for exponent, log in logs.items())
    lines.append(f'<polyline points="{path}" fill="none" stroke="#1f6feb" stroke-width="2"/>')
    for exponent, m in found.items():
        place = f'x="{x(exponent):.1f}" y="{y(logs[exponent]) - 12:.1f}"'
        lines.append(f'<circle cx="{x(exponent):.1f}" cy="{y(logs[exponent]):.1f}" r="4" fill="#1f6feb"/>')
        lines.append(f'<text {place} text-anchor="end">{m.cpu_s:.2g} s, {m.peak_mb:.0f} MB</text>')
    lines.append(
        f'<text x="{(LEFT + RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">tensor records; processor time '
        f"of a report grows with their number to the power of {slope:.2f}</text>"
    )
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=7, help="exponent of ten of the largest run, 6 at least")
    parser.add_argument("--keep", type=Path, help="make the runs here and leave them")
    parser.add_argument("--check", action="store_true", help="fail where the exponent is too large")
    parser.add_argument("--markdown", type=Path, help="put the table into this page")
    parser.add_argument("--picture", type=Path, help=f"draw it here, such as docs/images/{PICTURE.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = points(options.keep or Path(temporary), options.largest)
    slope = fitted_exponent(found)
    lines = [
        f"A report over more and more records, framework's scales; the exponent of the CPU seconds from "
        f"{10**FITTED_FROM:,} records on is {slope:.2f}, at most {MOST_EXPONENT}. {pages.machine()}, DuckDB "
        f"{duckdb.__version__}, {time.strftime('%Y-%m-%d')}.",
        "",
        "| records | wall s | CPU s | peak MB |",
        "|---:|---:|---:|---:|",
        *(f"| {10**e:,} | {m.wall_s:.2f} | {m.cpu_s:.2f} | {m.peak_mb:.0f} |" for e, m in found.items()),
    ]
    print("\n".join(lines))
    if options.markdown is not None:
        pages.replace_section(options.markdown, "scaling", lines)
    if options.picture is not None:
        options.picture.write_text(draw(found, slope), encoding="utf-8")
    if options.check and slope > MOST_EXPONENT:
        raise SystemExit(f"the exponent is {slope:.2f}, at most {MOST_EXPONENT}")


if __name__ == "__main__":
    main()
