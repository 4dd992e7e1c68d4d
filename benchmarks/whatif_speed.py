"""How fast a what-if goes over the histograms of a run, beside the same sums of the same rows without any rounding.

    python benchmarks/whatif_speed.py [--rows 100000000] [--keep FOLDER] [--check] [--markdown FILE]

Made up here are histograms of 7,000 values each, those of a BF16 tensor whose rows have many magnitudes, at amaxes of
some octaves, as Parquet with the row groups of the writer. Timed in turn on two threads: sums of the values as they
are; the same sums with every value rounded by the macros, at one scale; and `whatif_current`, which joins each
histogram with its record, rounds with the scale of that record, counts what is lost and sums for each record. Rates
are of processor time, and ratios to the plain sums of the same round: what else the machine does cancels out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import pages
from big_run import write_table

from fp8debug.analysis import Run, open_run
from fp8debug.rundir import LayerInfo, Manifest, RunDir

N_VALUES, PART_HISTOGRAMS, N_THREADS, N_LAYERS = 7_000, 1_000, 2, 96
PLAIN, ROUNDED, WHATIF = "plain sums", "rounded at one scale", "`whatif_current`, a scale a record"
LEAST_RATIOS = {ROUNDED: 60 / 111, WHATIF: 0.15}
"""Rows a second over those of the plain sums, of which two idle cores do 111 M."""

_TENSORS = """
select
    0 as segment, seq // $n_layers as step, 0 as microbatch, 0 as call, 'forward' as pass, 0 as rank,
    format('layers.{}.mlp', seq % $n_layers) as layer, 'x' as tensor, seq, true as sampled, 'bfloat16' as dtype,
    'all' as row_class, 'ok' as status, 4000000 as n, 0 as n_zero, 0 as n_nan, 0 as n_posinf, 0 as n_neginf,
    (select max(abs(value)) from bins) * pow(2, seq % 7) as amax
from range($n) as r(seq)
"""
_HISTOGRAMS = """
select
    0 as segment, 0 as rank, seq, 'high' as counted, unnest(values) * pow(2, seq % 7) as value,
    unnest(counts) as count
from range($first, $last) as r(seq), (select list(value) as values, list(count) as counts from bins)
"""
_SUMS = """
select sum(c * x * x), sum(c * q * q), sum(c * x * q), sum(c * (x - q) * (x - q))
from (select count as c, value::double as x, {q}::double as q from stored.histograms)
"""
QUERIES = {
    PLAIN: _SUMS.format(q="(value * 0.5)"),
    ROUNDED: _SUMS.format(q="fake_quantize(value, 0.0006, 'E4M3')"),
    WHATIF: "select count(*), sum(mse) from whatif_current('E4M3')",
}


def make_run(path: Path, n_rows: int) -> int:
    """Write a run with at least so many histogram rows to `path`; returns their number."""
    n_histograms = -(-n_rows // N_VALUES)
    run = RunDir(path)
    path.mkdir(parents=True)
    names = [f"layers.{number}.mlp" for number in range(N_LAYERS)]
    layers = [LayerInfo(name, name, "Linear", "model", 1024, 1024, True) for name in names]
    run.write_manifest(
        Manifest("wide", ["train.py"], "2026-01-01T00:00:00", tensors=["x"], layers=layers, status="closed")
    )
    con = duckdb.connect(config={"threads": N_THREADS})
    value, count = _bins()
    con.execute(
        "create table bins as select unnest($value::float[]) as value, unnest($count::bigint[]) as count",
        {"value": value.tolist(), "count": count.tolist()},
    )
    words = {"$n_layers": str(N_LAYERS), "$n": str(n_histograms)}
    write_table(con, "tensors", _filled(_TENSORS, words), path / "tensors" / "rank=0" / "part-000000.parquet")
    for number, first in enumerate(range(0, n_histograms, PART_HISTOGRAMS)):
        words = {"$first": str(first), "$last": str(min(first + PART_HISTOGRAMS, n_histograms))}
        part = path / "histograms" / "rank=0" / f"part-{number:06d}.parquet"
        write_table(con, "histograms", _filled(_HISTOGRAMS, words), part)
    return n_histograms * N_VALUES


def _bins() -> tuple[np.ndarray, np.ndarray]:
    """The commonest values of a BF16 tensor of many magnitudes, ascending, and how often each occurs."""
    random = np.random.default_rng(0)
    sample = random.standard_normal(4_000_000) * np.exp(3 * random.standard_normal(4_000_000))
    bits = sample.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    values, counts = np.unique(rounded, return_counts=True)
    kept = np.sort(np.argsort(-counts, kind="stable")[:N_VALUES])
    return values[kept], counts[kept]


def _filled(query: str, words: dict[str, str]) -> str:
    for word in sorted(words, key=len, reverse=True):
        query = query.replace(word, words[word])
    return query


def measure(run: Run, n_rows: int, n_rounds: int = 3) -> dict[str, list[float]]:
    """Million rows in a second of both threads, round by round; of processor time, for others use the machine too."""
    found: dict[str, list[float]] = {name: [] for name in QUERIES}
    for number in range(n_rounds + 1):
        for name, query in QUERIES.items():
            start = time.process_time()
            run.sql(query).fetchall()
            if number:  # the first round reads from disk
                found[name].append(n_rows * N_THREADS / (time.process_time() - start) / 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--keep", type=Path, help="make the run here and leave it")
    parser.add_argument("--check", action="store_true", help="fail where the limit is missed")
    parser.add_argument("--markdown", type=Path, help="put the table into this page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = options.keep or Path(temporary) / "run"
        if not path.exists():
            make_run(path, options.rows)
        with open_run(path, threads=N_THREADS) as run:
            n_rows = run.sql("select count(*) from stored.histograms").fetchall()[0][0]
            rates = measure(run, n_rows)
    lines = _table(rates, n_rows)
    print("\n".join(lines))
    if options.markdown is not None:
        pages.replace_section(options.markdown, "whatif", lines)
    missed = [
        f"{name}: {_ratio(rates, name):.2f} of the plain sums, at least {least:.2f}"
        for name, least in LEAST_RATIOS.items()
        if _ratio(rates, name) < least
    ]
    if options.check and missed:
        raise SystemExit("; ".join(missed))


def _ratio(rates: dict[str, list[float]], name: str) -> float:
    return statistics.median(a / b for a, b in zip(rates[name], rates[PLAIN], strict=True))


def _table(rates: dict[str, list[float]], n_rows: int) -> list[str]:
    lines = [
        f"{n_rows:,} histogram rows, {n_rows // N_VALUES:,} histograms, {N_THREADS} threads, processor time, medians "
        f"of {len(rates[PLAIN])} rounds. {pages.machine()}, DuckDB {duckdb.__version__}, {time.strftime('%Y-%m-%d')}.",
        "",
        "| query | million rows/s | slowest to fastest | of the plain sums | at least |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, found in rates.items():
        least = f"{LEAST_RATIOS[name]:.2f}" if name in LEAST_RATIOS else ""
        lines.append(
            f"| {name} | {statistics.median(found):.0f} | {min(found):.0f} to {max(found):.0f} | "
            f"{_ratio(rates, name):.2f} | {least} |"
        )
    return lines


if __name__ == "__main__":
    main()
