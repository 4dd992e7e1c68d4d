"""The same report and the same what-if by DuckDB alone and by a Ray cluster, over a made-up run of many ranks.

    python benchmarks/engines.py [--ranks 16] [--address HOST:PORT] [--check] [--markdown docs/performance.md]

On one machine both have the same cores, so the ratio is what the detour through a cluster costs; with --address the
run is made below --folder, which all machines must see. The share is how much of DuckDB's time goes into what an
engine computes: the rest, on one row a record and less, stays in the asking process.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from many_ranks import Size, make_run
from pages import machine, replace_section

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.engine import DuckDBEngine, Engine
from fp8debug.analysis.engine.on_ray import RayEngine
from fp8debug.analysis.report import build_report
from fp8debug.analysis.whatif import whatif

MOST_OVERHEAD = 2.0
"""Limit of --check: Ray's time over DuckDB's on the same cores, the start of the cluster apart."""
RECIPES = ("current", "delayed:amax_history_len=16", "delayed:margin=1")


def report(run: Run) -> Any:
    """What the report says."""
    return asdict(build_report(run))


def compare_recipes(run: Run) -> Any:
    """What the what-if says of three recipes."""
    return asdict(whatif(run, RECIPES))


QUESTIONS: dict[str, Callable[[Run], Any]] = {"report": report, "whatif, 3 recipes": compare_recipes}


@contextmanager
def timed_reductions() -> Iterator[list[float]]:
    """Seconds that each reduction takes."""
    seconds: list[float] = []
    plain = Run.reduce

    def timed(self: Run, name: str, given: str, into: str) -> None:
        start = time.perf_counter()
        plain(self, name, given, into)
        seconds.append(time.perf_counter() - start)

    Run.reduce = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Run.reduce = plain  # type: ignore[method-assign]


def ask(path: Path, question: Callable[[Run], Any], engine: Engine) -> tuple[Any, float, float]:
    """The answer, seconds in all, and those in reductions."""
    with timed_reductions() as reductions:
        start = time.perf_counter()
        with open_run(path, engine=engine) as run:
            answer = question(run)
        return answer, time.perf_counter() - start, sum(reductions)


def differences(got: Any, expected: Any) -> float:
    """Largest relative difference of two floats; infinite where anything else differs."""
    if isinstance(expected, float) and isinstance(got, float):
        if got == expected or (math.isnan(got) and math.isnan(expected)):
            return 0.0
        return abs(got - expected) / max(abs(got), abs(expected))
    if isinstance(expected, dict) and isinstance(got, dict) and got.keys() == expected.keys():
        return max((differences(got[key], value) for key, value in expected.items()), default=0.0)
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple) and len(got) == len(expected):
        return max((differences(*pair) for pair in zip(got, expected, strict=True)), default=0.0)
    return 0.0 if got == expected else math.inf


def measure(path: Path, address: str | None, repeats: int) -> tuple[list[dict[str, Any]], float]:
    """One row a question, and the seconds until the cluster was there; the engines take turns."""
    start = time.perf_counter()
    by_ray, alone = RayEngine(address), DuckDBEngine()
    start_s = time.perf_counter() - start
    rows = []
    try:
        for name, question in QUESTIONS.items():
            ask(path, question, by_ray)  # starts the cluster's processes
            pairs = [(ask(path, question, alone), ask(path, question, by_ray)) for _ in range(repeats)]
            ratios = sorted(ray[1] / duck[1] for duck, ray in pairs)
            rows.append({
                "question": name,
                "duckdb_s": statistics.median(duck[1] for duck, _ in pairs),
                "share": statistics.median(duck[2] / duck[1] for duck, _ in pairs),
                "ray_s": statistics.median(ray[1] for _, ray in pairs),
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "difference": max(differences(ray[0], duck[0]) for duck, ray in pairs),
            })  # fmt: skip
    finally:
        by_ray.close()
    return rows, start_s


def table(rows: list[dict[str, Any]], size: Size, start_s: float) -> Iterator[str]:
    """As Markdown."""
    n_rows = size.n_histograms * size.n_values / 1e6
    yield f"{size.n_ranks} ranks, {size.n_records:,} tensor records, {size.n_histograms:,} histograms of {n_rows:.0f}"
    yield f"million rows. {machine()}, duckdb {version('duckdb')}, ray {version('ray')}, {time.strftime('%Y-%m-%d')}."
    yield f"Both engines had the same cores; the cluster started in {start_s:.1f} s, which is in no column."
    yield ""
    yield "| question | DuckDB alone | of it in reductions | Ray | ratio (lowest to highest) | largest difference |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row['question']} | {row['duckdb_s']:.1f} s | {100 * row['share']:.0f} % | {row['ray_s']:.1f} s | "
            f"{row['ratio']:.2f} ({row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f}) | {row['difference']:.0e} |"
        )


def missed(rows: list[dict[str, Any]], *, same_cores: bool) -> list[str]:
    """Limits that were not kept."""
    found = [
        f"{row['question']}: answers differ by {row['difference']:.1e}" for row in rows if row["difference"] > 1e-12
    ]
    if same_cores:
        found += [
            f"{row['question']}: Ray takes {row['ratio']:.2f} times as long, at most {MOST_OVERHEAD} is the limit"
            for row in rows
            if row["ratio"] > MOST_OVERHEAD
        ]
    return found


def main() -> None:
    """Make the run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=Size.n_ranks)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--address", help="of a Ray cluster; without it one is started on this machine")
    parser.add_argument("--folder", help="where the run is made; with --address one that the cluster sees")
    parser.add_argument("--check", action="store_true", help="exit 1 when a limit is missed")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="replace the table of this page")
    options = parser.parse_args()
    size = Size(n_ranks=options.ranks)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        make_run(Path(folder) / "run", size)
        rows, start_s = measure(Path(folder) / "run", options.address, options.repeats)
    lines = list(table(rows, size, start_s))
    print("\n".join(lines))
    if options.markdown is not None:
        replace_section(options.markdown, "engines", lines)
    if options.check and (failures := missed(rows, same_cores=options.address is None)):
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
