"""What a run takes on the disk: bytes of a sampled histogram on the demo, and files before and after merging.

    python benchmarks/disk.py [--steps 100] [--every 10] [--check] [--markdown docs/performance.md]

The demo is `fp8debug attach --every 10 examples/train_gpt.py`: 17 layers, x, w and dy of each at every tenth step, with
all details. A histogram's bytes are its share, by rows, of its row group. With `--check` exit code 1 when the median is
beyond 12 kB, for the histogram alone or for all that the run holds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
from pages import machine, replace_section

from fp8debug.hooks.compaction import Compacted, compact
from fp8debug.hooks.tiers import FAN_IN, Sized, due
from fp8debug.rundir import RunDir
from fp8debug.schema import TABLES

ROOT = Path(__file__).resolve().parent.parent
LIMIT_BYTES = 12_000
MONTH_FLUSHES = 134 + 30 * 288
"""Flushes of a month: 134 while the time between them grows to 300 s, then one every 300 s."""


def record(folder: Path, steps: int, every: int) -> RunDir:
    """The demo, recorded as a user would."""
    command = [sys.executable, "-m", "fp8debug", "attach", "-q", "--every", str(every), "--out", str(folder)]
    subprocess.run(
        [*command, str(ROOT / "examples" / "train_gpt.py"), "--steps", str(steps)], check=True, capture_output=True
    )
    return RunDir(folder)


def histogram_bytes(run: RunDir) -> list[float]:
    """Bytes on the disk of each histogram of a run."""
    found: list[float] = []
    for name in run.part_names("histograms"):
        file = pq.ParquetFile(run.folder / name)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            row_bytes = sum(group.column(i).total_compressed_size for i in range(group.num_columns)) / group.num_rows
            keys = file.read_row_group(number, ["segment", "rank", "seq", "counted"]).to_pydict()
            found += [rows * row_bytes for rows in Counter(zip(*keys.values(), strict=True)).values()]
    return found


def all_bytes(run: RunDir) -> int:
    """Bytes of all Parquet files of a run."""
    return sum(run.storage.size(name) for table in TABLES for name in run.part_names(table))


def files_of_a_month() -> int:
    """The most files of one table and rank, of small parts, in a month of flushes."""
    parts: list[Sized] = []
    most = 0
    for number in range(MONTH_FLUSHES):
        parts.append(Sized(str(number), 1, 1000))
        most = max(most, len(parts))
        while (number + 1) % FAN_IN == 0 and (groups := due(parts)):
            for group in groups:
                at = parts.index(group[0])
                merged = Sized(group[0].name, sum(p.n_flushes for p in group), sum(p.n_bytes for p in group))
                parts[at : at + len(group)] = [merged]
    return most


def table(sizes: list[float], whole: float, done: Compacted, cpu_s: float) -> Iterator[str]:
    """The results as lines of Markdown."""
    low, median, high = statistics.quantiles(sizes, n=4)
    yield "| on the disk | median | quartiles | limit |"
    yield "| --- | ---: | ---: | ---: |"
    yield f"| a sampled histogram | {median / 1000:.1f} kB | {low / 1000:.1f} to {high / 1000:.1f} | 12 kB |"
    yield f"| everything the run holds, over its histograms | {whole / 1000:.1f} kB | | 12 kB |"
    yield ""
    yield "| files | before | after `fp8debug compact` |"
    yield "| --- | ---: | ---: |"
    yield f"| Parquet files of the demo | {done.n_files_before} | {done.n_files} |"
    yield f"| their bytes | {done.n_bytes_before / 1e6:.2f} MB | {done.n_bytes / 1e6:.2f} MB |"
    yield f"| a table of one rank in a month of {MONTH_FLUSHES:,} small flushes, at most | {files_of_a_month()} | 1 |"
    yield ""
    yield f"Compacting it took {cpu_s:.2f} s of CPU, {cpu_s / done.n_bytes_before * 1e6:.2f} s a MB."
    yield f"{len(sizes):,} histograms; {machine()}, pyarrow {version('pyarrow')}; {date.today()}."


def main() -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--check", action="store_true", help="exit 1 where the limit is missed")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="replace the block `disk` of this page")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fp8debug-disk-"))
    try:
        run = record(folder / "run", arguments.steps, arguments.every)
        sizes = histogram_bytes(run)
        whole = all_bytes(run) / len(sizes)
        began_s = time.process_time()
        done = compact(run)
        lines = list(table(sizes, whole, done, time.process_time() - began_s))
    finally:
        shutil.rmtree(folder)
    print("\n".join(lines))
    if arguments.markdown is not None:
        replace_section(arguments.markdown, "disk", lines)
    missed = max(statistics.median(sizes), whole) > LIMIT_BYTES
    if missed:
        print(f"limit missed: {LIMIT_BYTES / 1000:.0f} kB", file=sys.stderr)
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
