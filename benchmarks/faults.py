"""What is left of a run when its training is killed, at random instants; and where its disk fills up, for good.

    python benchmarks/faults.py [--kills 100] [--seed 1] [--markdown docs/faults.md]

Exits 1 when anything that was flushed is lost or unreadable, when a dead run passes for a live one, or when what the
training itself wrote differs from a training without capture.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import torch
from pages import machine, replace_section
from torch import nn

from fp8debug.analysis.liveness import liveness
from fp8debug.analysis.run import open_run
from fp8debug.rundir import RunDir

TABLES = ("steps", "tensors", "scales", "errors", "histograms")
SMALL_DISK_KB = 512


def train(folder: Path, n_steps: int, *, captured: bool) -> None:
    """A training that writes a file of its own, one line a step."""
    import fp8debug
    from fp8debug.hooks import flushing

    vars(flushing)["flush_interval_s"] = lambda elapsed_s: -1.0  # each step goes to the disk
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    run = folder / "disk" / "run"
    capture = fp8debug.attach(model, run_dir=run, every=1, engine="torch") if captured else contextlib.nullcontext()
    with capture, (folder / "losses.txt").open("w") as output:
        for _ in range(n_steps):
            loss = (model(torch.randn(6, 16)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex(), file=output, flush=True)


def start(folder: Path, n_steps: int, *, captured: bool = True) -> int:
    """The same in a fork of this process, which has imported everything; returns its pid."""
    (folder / "disk").mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with (folder / "stderr.txt").open("w") as errors:
                os.dup2(errors.fileno(), 2)
                train(folder, n_steps, captured=captured)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def killed(folder: Path, delay_s: float, losses: list[str]) -> str:
    """Kill a training some time after its first step; returns what was wrong, or `whole`."""
    pid = start(folder, len(losses))
    output = folder / "losses.txt"
    deadline = time.monotonic() + 60
    while not (output.exists() and output.stat().st_size):
        if time.monotonic() > deadline:
            return "it never began"
        time.sleep(0.001)
    time.sleep(delay_s)
    run = RunDir(folder / "disk" / "run")
    flushed = {name: run.storage.read(name) for table in TABLES for name in _readable(run, table)}
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    written = output.read_text().split("\n")
    if written[:-1] != losses[: len(written) - 1]:
        return "the training's own file differs"
    if liveness(run, run.read_manifest()).status != "killed":
        return "it passes for alive"
    with open_run(run.path) as opened:
        for table in TABLES:
            n_rows = sum(pq.ParquetFile(run.path / name).metadata.num_rows for name in run.part_names(table))
            if opened.sql(f"select count(*) from {table}").fetchall() != [(n_rows,)]:
                return f"rows of {table} are lost"
        steps = [step for (step,) in opened.sql("select step from steps order by step").fetchall()]
    if steps != list(range(len(steps))):
        return "a flushed step is lost, or there twice"
    least = sum(
        pq.ParquetFile(_buffer(content)).metadata.num_rows for name, content in flushed.items() if "steps/" in name
    )
    return "whole" if len(steps) >= least else "steps that were flushed before are gone"


def _readable(run: RunDir, table: str) -> list[str]:
    return [name for name in run.part_names(table) if run.storage.exists(name)]


def _buffer(content: bytes) -> object:
    import pyarrow as pa

    return pa.BufferReader(content)


def full_disk(folder: Path, losses: list[str]) -> str:
    """Train on a disk of half a megabyte; returns what was wrong, or `said`."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_KB}k", "tmpfs", str(disk)]
    if subprocess.run(mounted, check=False, capture_output=True).returncode != 0:
        return "not tried: a small disk can only be mounted by root"
    try:
        _, status = os.waitpid(start(folder, len(losses)), 0)
        said = [line for line in (folder / "stderr.txt").read_text().splitlines() if "disabled at step" in line]
        if status or (folder / "losses.txt").read_text().split() != losses:
            return "the training noticed"
        return "said" if len(said) == 1 and "No space left" in said[0] else f"said {len(said)} times"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args()
    delays = random.Random(options.seed)
    found: Counter[str] = Counter()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fp8debug-faults-") as place:
        os.waitpid(start(Path(place) / "bare", 400, captured=False), 0)
        losses = (Path(place) / "bare" / "losses.txt").read_text().split()
        for number in range(options.kills):
            found[killed(Path(place) / str(number), delays.uniform(0.0, 1.0), losses)] += 1
        full = full_disk(Path(place) / "full", losses)
    lines = [
        f"{options.kills} kills, seed {options.seed}, in {time.monotonic() - began_s:.0f} s ({machine()}, "
        f"torch {torch.__version__}, {time.strftime('%Y-%m-%d')}).",
        "",
        "| fault | what was found | times |",
        "|---|---|---:|",
        *(f"| kill -9 | {text} | {n} |" for text, n in found.most_common()),
        f"| disk full ({SMALL_DISK_KB} kB) | {full} | 1 |",
    ]
    print("\n".join(lines))
    if options.markdown is not None:
        replace_section(options.markdown, "faults", lines)
    if found["whole"] != options.kills or not (full == "said" or full.startswith("not tried")):
        sys.exit("a fault lost something, or hurt the training")


if __name__ == "__main__":
    main()
