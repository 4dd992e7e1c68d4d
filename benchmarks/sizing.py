"""Bytes, files and seconds of capturing large trainings, from unit costs that are measured here and now.

    python benchmarks/sizing.py [--markdown docs/sizing.md]

The unit costs are measured (a small capture for bytes a record, a tensor of 16.8 M elements for bytes a histogram and
seconds a byte); the rest is counting: layers, operands, micro-batches, steps, ranks. Nothing of a large model is run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from big_run import make_run, measure
from gpt import BATCH, GPT, SEQUENCE, VOCABULARY
from pages import machine, replace_section

import fp8debug
from fp8debug.hooks.measure import load_engine
from fp8debug.rundir import RunDir

EVERY = 50
STEPS = 10_000
REPORTED_STEPS = 100
BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Gemm:
    """Alike linear layers of one rank: their number, K, N, and the rows that each reads in a micro-batch."""

    n_layers: int
    k: int
    n: int
    tokens: int

    @property
    def elements(self) -> tuple[int, int]:
        """Of x and dy together, and of w, over all the layers."""
        return self.n_layers * self.tokens * (self.k + self.n), self.n_layers * self.k * self.n


@dataclass(frozen=True, slots=True)
class Setup:
    """One training: what one rank has of the model."""

    name: str
    how: str
    ranks: int
    microbatches: int
    gemms: tuple[Gemm, ...]

    @property
    def records(self) -> int:
        """Records of one rank and step: x and dy of each micro-batch, w once."""
        return sum(gemm.n_layers for gemm in self.gemms) * (2 * self.microbatches + 1)

    @property
    def gigabytes(self) -> float:
        """Tensor memory that one rank's records stand for in a step, in BF16."""
        of_tokens = sum(gemm.elements[0] for gemm in self.gemms) * self.microbatches
        return (of_tokens + sum(gemm.elements[1] for gemm in self.gemms)) * BF16_BYTES / 1e9


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """What was measured."""

    record_bytes: float
    """Of a record between sampled steps, its simulated scales included."""
    sampled_bytes: float
    """Of a record in a sampled step beside its histogram: errors, channels, results of GEMMs."""
    histogram_bytes: float
    """Of a histogram of 16.8 M Gaussian elements."""
    health_s_per_gb: float
    """CPU seconds of one pass between sampled steps, on the host."""
    count_s_per_gb: float
    """CPU seconds of counting, on the host."""
    report_s_per_million: float
    """CPU seconds of a report, a million tensor records."""


def dense(name: str, how: str, *, ranks: int, layers: int, d: int, ffn: int, kv: int, tokens: int, tp: int) -> Setup:
    """A Llama-like decoder; `layers` on this rank, tensors split by `tp`."""
    gemms = (
        Gemm(2 * layers, d, d // tp, tokens),
        Gemm(2 * layers, d, kv // tp, tokens),
        Gemm(2 * layers, d, ffn // tp, tokens),
        Gemm(layers, ffn // tp, d, tokens),
    )
    return Setup(name, how, ranks, 8, gemms)


def setups() -> list[Setup]:
    """Three sizes, each split as such models are."""
    seven = dense("7B", "FSDP", ranks=64, layers=32, d=4096, ffn=11008, kv=4096, tokens=4096, tp=1)
    seventy = dense("70B", "TP 8, PP 4, DP 16", ranks=512, layers=20, d=8192, ffn=28672, kv=1024, tokens=8192, tp=8)
    n_layers, tokens, experts = 4, 4096, 4
    latent = (
        Gemm(n_layers, 7168, 1536, tokens),
        Gemm(n_layers, 1536, 24576, tokens),
        Gemm(n_layers, 7168, 576, tokens),
        Gemm(n_layers, 512, 32768, tokens),
        Gemm(n_layers, 16384, 7168, tokens),
    )
    shared = (Gemm(2 * n_layers, 7168, 2048, tokens), Gemm(n_layers, 2048, 7168, tokens))
    # 64 ranks route 8 of 256 experts a token: half of a rank's tokens for each of its four experts, on average.
    routed = (
        Gemm(2 * n_layers * experts, 7168, 2048, 8 * tokens // experts),
        Gemm(n_layers * experts, 2048, 7168, 8 * tokens // experts),
    )
    return [seven, seventy, Setup("671B", "PP 16, EP 64, DP 2", 2048, 16, latent + shared + routed)]


def table_bytes(path: Path) -> dict[str, int]:
    """Bytes of each table of a run."""
    run = RunDir(path)
    return {
        folder.name: sum(part.stat().st_size for part in run.parts(folder.name))
        for folder in path.iterdir()
        if folder.is_dir()
    }


def capture(path: Path, every: int, steps: int = 60) -> int:
    """Train the benchmark's GPT under capture; returns the number of records."""
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    session = fp8debug.attach(model, run_dir=path, every=every, quiet=True)
    for _ in range(steps):
        ids = torch.randint(0, VOCABULARY, (2, BATCH // 4, SEQUENCE // 4))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.cross_entropy(model(ids[0]).flatten(0, 1).float(), ids[1].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return session.close().n_records


def unit_costs(folder: Path) -> UnitCosts:
    """Measure."""
    n = capture(folder / "sparse", every=1_000_000)
    capture(folder / "dense", every=1)
    sparse, sampled = table_bytes(folder / "sparse"), table_bytes(folder / "dense")
    always = ("tensors", "scales")
    record = sum(sparse[table] for table in always) / n
    detail = sum(size for table, size in sampled.items() if table not in (*always, "histograms", "steps")) / n
    engine = load_engine(None)
    engine.warm_up()
    big = torch.randn(4096, 4096).to(torch.bfloat16)
    gigabytes = big.numel() * BF16_BYTES / 1e9
    return UnitCosts(
        record_bytes=record,
        sampled_bytes=detail,
        histogram_bytes=histogram_bytes(folder / "big", big),
        health_s_per_gb=seconds(lambda: engine.health(big, torch.bfloat16)) / gigabytes,
        count_s_per_gb=seconds(lambda: engine.count(big, torch.bfloat16)) / gigabytes,
        report_s_per_million=report_seconds(folder),
    )


def report_seconds(folder: Path) -> float:
    """CPU seconds of a report for a million records more, from two runs of unequal length."""
    few, many = 100_000, 400_000
    spent = {}
    for n_records in (few, many):
        make_run(folder / str(n_records), n_records, "framework", 8)
        spent[n_records] = min(measure(folder / str(n_records)).cpu_s for _ in range(2))
    return (spent[many] - spent[few]) / (many - few) * 1e6


def histogram_bytes(path: Path, big: torch.Tensor) -> float:
    """Bytes of the histogram of one large tensor, among twenty."""
    layer = torch.nn.Linear(big.shape[1], 16, bias=False, dtype=torch.bfloat16)
    session = fp8debug.attach(layer, run_dir=path, tensors="x", every=1, detail="none", quiet=True)
    for number in range(20):
        layer(big * (1 + number / 7))
        session.step()
    session.close()
    return table_bytes(path)["histograms"] / 20


def seconds(call: object) -> float:
    """CPU seconds of the shortest of five calls."""
    assert callable(call)
    found = []
    for _ in range(5):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return min(found)


def lines_of_units(unit: UnitCosts) -> list[str]:
    """The measured figures as a table."""
    rows = [
        ("a record between sampled steps, scales of two recipes included", f"{unit.record_bytes:.0f} B"),
        ("what a sampled record adds: errors, channels, GEMM results", f"{unit.sampled_bytes:.0f} B"),
        ("histogram of 16.8 M Gaussian elements", f"{unit.histogram_bytes / 1e3:.1f} kB"),
        ("health and amax of 1 GB on the host, one thread", f"{unit.health_s_per_gb:.2f} s"),
        ("counting 1 GB on the host, one thread", f"{unit.count_s_per_gb:.2f} s"),
        ("a report, a million records", f"{unit.report_s_per_million:.1f} s"),
    ]
    return ["| unit | cost |", "| --- | --- |", *(f"| {what} | {cost} |" for what, cost in rows)]


def lines_of_setups(unit: UnitCosts) -> list[str]:
    """One line a training of 10,000 steps, each 50th sampled."""
    head = (
        "model", "split", "ranks", "records a rank and step", "tensor GB a rank and step", "MB a rank",
        "GB in all", "CPU s a step", "CPU s a sampled step", f"report on {REPORTED_STEPS} steps, CPU min",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for setup in setups():
        sampled = setup.records * STEPS // EVERY
        rank_bytes = setup.records * STEPS * unit.record_bytes
        rank_bytes += sampled * (unit.sampled_bytes + unit.histogram_bytes)
        cells = (
            setup.name, setup.how, f"{setup.ranks:,}", f"{setup.records:,}", f"{setup.gigabytes:.0f}",
            f"{rank_bytes / 1e6:,.0f}", f"{rank_bytes * setup.ranks / 1e9:,.0f}",
            f"{setup.gigabytes * unit.health_s_per_gb:.1f}", f"{setup.gigabytes * unit.count_s_per_gb:.1f}",
            f"{setup.records * setup.ranks * REPORTED_STEPS / 1e6 * unit.report_s_per_million / 60:,.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, help="page whose tables are replaced")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        unit = unit_costs(Path(folder))
    about = ["", f"{machine()}, torch {torch.__version__}; {date.today()}."]
    units, models = [*lines_of_units(unit), *about], [*lines_of_setups(unit), *about]
    print("\n".join([*units, "", *models]))
    if args.markdown:
        replace_section(args.markdown, "units", units)
        replace_section(args.markdown, "models", models)


if __name__ == "__main__":
    main()
