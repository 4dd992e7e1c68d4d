"""Whether memory and disk of a capture grow with the steps: a small training, every step of it watched.

    python benchmarks/soak.py [--steps 10000] [--every 50] [--check] [--markdown docs/performance.md]

After the first fifth, which pays for what is made once, a line is fitted to the resident memory, and one to the bytes
on disk. Memory must be flat; the disk grows by the same bytes a step from beginning to end.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from pages import machine, replace_section
from torch import nn

import fp8debug

MB = 1 << 20
WARM_UP = 0.2
MOST_MB_PER_1000_STEPS = 0.5
MOST_BENT = 1.25
"""Bytes a step in the last third over those in the middle third."""
SAMPLES = 200


@dataclass
class Soak:
    """What was read while it trained."""

    steps: list[int] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    duration_s: float = 0.0

    def read(self, step: int, run: Path) -> None:
        """Note how things stand."""
        sizes = list(_sizes(run))
        self.steps.append(step)
        self.rss.append(resident_bytes())
        self.disk.append(sum(sizes))
        self.files.append(len(sizes))

    def slope(self, values: list[int], begin: float, end: float) -> float:
        """Of a line fitted to the values between these shares of the steps, per step."""
        n = len(self.steps)
        part = slice(int(n * begin), int(n * end))
        return float(np.polyfit(self.steps[part], values[part], 1)[0])

    @property
    def mb_per_1000_steps(self) -> float:
        """Growth of the resident memory after the warm-up."""
        return self.slope(self.rss, WARM_UP, 1.0) * 1000 / MB

    @property
    def bent(self) -> float:
        """How the disk's growth at the end compares with that in the middle."""
        return self.slope(self.disk, 2 / 3, 1.0) / self.slope(self.disk, 1 / 3, 2 / 3)


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(run: Path, n_steps: int, every: int, engine: str | None = None) -> Soak:
    """Train with capture on."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(64, 32, dtype=torch.bfloat16)
    found, period, began_s = Soak(), max(1, n_steps // SAMPLES), time.perf_counter()
    with fp8debug.attach(model, run_dir=run, every=every, engine=engine, quiet=True) as session:
        for step in range(n_steps):
            model(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % period == 0:
                session.flush()  # what waits in memory is a matter of seconds, not of steps
                time.sleep(0.02)  # for the writer, so that readings compare
                gc.collect()
                found.read(step, run)
    found.duration_s = time.perf_counter() - began_s
    return found


def _sizes(run: Path) -> Iterator[int]:
    for path in run.rglob("*.parquet"):
        try:
            yield path.stat().st_size
        except FileNotFoundError:  # merged meanwhile
            continue


def table(found: Soak, n_steps: int, every: int) -> list[str]:
    """Lines of Markdown."""
    n = len(found.steps)
    rows = [
        f"| {found.steps[i]:,} | {found.rss[i] / MB:.1f} | {found.disk[i] / MB:.2f} | {found.files[i]} |"
        for i in sorted({int(n * share) for share in (0, 0.2, 0.4, 0.6, 0.8)} | {n - 1})
    ]
    return [
        f"{n_steps:,} steps of a model of three layers, {every} steps apart sampled, in {found.duration_s:.0f} s "
        f"({machine()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}). A line through the resident memory "
        f"after the first fifth rises by {found.mb_per_1000_steps:+.3f} MB in 1,000 steps (limit "
        f"{MOST_MB_PER_1000_STEPS}); bytes a step in the last third are {found.bent:.2f} of those in the middle third "
        f"(limit {MOST_BENT}).",
        "",
        "| step | resident MB | on disk MB | files |",
        "|---:|---:|---:|---:|",
        *rows,
    ]


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--check", action="store_true", help="exit 1 where a limit is missed")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fp8debug-soak-") as folder:
        found = soak(Path(folder) / "run", options.steps, options.every)
    lines = table(found, options.steps, options.every)
    print("\n".join(lines))
    if options.markdown is not None:
        replace_section(options.markdown, "soak", lines)
    if options.check and (found.mb_per_1000_steps > MOST_MB_PER_1000_STEPS or found.bent > MOST_BENT):
        sys.exit("memory or disk of the capture grows with the steps")


if __name__ == "__main__":
    main()
