"""How fast a tensor is measured: GB/s of its memory, beside plain passes over the same tensor.

    python benchmarks/kernels.py [--engine numba|torch] [--elements N] [--seconds S] [--check] [--markdown PAGE]

*read* is the sum of the memory's 64-bit words, as near to the speed of memory as torch comes; *amax* is `x.amax()`, the
one number that a scaling recipe takes. All calls take turns, and each number is the best of its turns, so that a busy
machine disturbs it little and their ratios less.

`--check` fails where counting BF16 on the worst of the distributions is slower than 5 GB/s a thread and slower than 0.4
of `x.amax()` (that is what 5 GB/s were on the machine the limit was set on, where amax does 12.4), where two threads
that count a tensor each are not 1.8 times as fast as one, or where counting FP32 takes memory that grows with the
tensor.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from fp8debug.formats import E4M3, E5M2
from fp8debug.hooks.measure import Engine, load_engine

BF16, FP32 = torch.bfloat16, torch.float32
LEAST_GB_S, LEAST_OF_AMAX, LEAST_OF_TWO_THREADS, MOST_ADDED_MB = 5.0, 0.4, 1.8, 8.0
CALLS = ("count", "health", "amax", "read")


def distributions(n: int) -> dict[str, dict[torch.dtype, torch.Tensor]]:
    """Vectors of n elements that are hard for counting in different ways, in BF16 and in FP32."""
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(n, generator=g)
    bits = torch.randint(-(1 << 31), 1 << 31, (n,), generator=g).to(torch.int32)
    values = {
        "all zero": torch.zeros(n),
        "ReLU": normal.relu(),
        "Gaussian": normal,
        "log-uniform": torch.exp((torch.rand(n, generator=g) - 0.5) * 80) * normal.sign(),
    }
    found = {name: {BF16: x.to(BF16), FP32: x} for name, x in values.items()}
    return found | {"random bits": {BF16: bits.to(torch.int16).view(BF16), FP32: bits.view(FP32)}}


def best_in_turns(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Shortest duration of each call in seconds, all of them taking turns for that long."""
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            call()  # the caches are those of this call
            for _ in range(2):
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


@dataclass(frozen=True, slots=True)
class Speed:
    """GB/s of each call on one tensor."""

    distribution: str
    dtype: torch.dtype
    gb_s: dict[str, float]

    @property
    def of_amax(self) -> float:
        """Speed of counting over that of amax."""
        return self.gb_s["count"] / self.gb_s["amax"]

    @property
    def is_missed(self) -> bool:
        """Whether it is slower than it may be."""
        return self.dtype is BF16 and self.gb_s["count"] < LEAST_GB_S and self.of_amax < LEAST_OF_AMAX


def tensor_speed(engine: Engine, distribution: str, t: torch.Tensor, seconds: float) -> Speed:
    """Measure one tensor."""
    words = t.view(torch.int64)
    calls: dict[str, Callable[[], object]] = {
        "count": partial(engine.count, t, BF16),
        "health": partial(engine.health, t, BF16),
        "amax": partial(torch.amax, t),
        "read": partial(torch.sum, words),
    }
    best = best_in_turns(calls, seconds)
    return Speed(distribution, t.dtype, {name: t.nbytes / best[name] / 1e9 for name in CALLS})


def two_threads(engine: Engine, t: torch.Tensor, seconds: float) -> float:
    """How many times as fast two threads count a tensor each as one counts one: the best of turns."""
    tensors = [t, t.clone()]
    alone = both = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        alone = min(alone, seconds_of(engine, tensors[:1]))
        both = min(both, seconds_of(engine, tensors))
    return 2 * alone / both


def seconds_of(engine: Engine, tensors: list[torch.Tensor], times: int = 4) -> float:
    """Seconds until each tensor is counted `times` times by a thread of its own."""
    start_together = threading.Barrier(len(tensors))
    starts: list[float] = []  # by their own clocks: this thread may be woken late

    def count(t: torch.Tensor) -> None:
        engine.count(t[:4], BF16)  # the tables of this thread
        start_together.wait()
        starts.append(time.perf_counter())
        for _ in range(times):
            engine.count(t, BF16)

    threads = [threading.Thread(target=count, args=(t,)) for t in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - min(starts)


def added_mb(call: Callable[[], object]) -> float:
    """By how much the process grows at most during a call, in MB of resident memory (of Linux)."""
    call()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    before = peak_mb()
    call()
    return peak_mb() - before


def peak_mb() -> float:
    """Largest resident memory of this process, in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured."""

    about: str
    speeds: list[Speed]
    two_threads: float
    added_mb: float
    fp32_mb: float

    @property
    def missed(self) -> list[str]:
        """What is slower or larger than it may be."""
        found = [
            f"{s.distribution}: {s.gb_s['count']:.2f} GB/s, {s.of_amax:.2f} of amax" for s in self.speeds if s.is_missed
        ]
        if self.two_threads < LEAST_OF_TWO_THREADS:
            found.append(f"two threads: {self.two_threads:.2f} times one")
        if self.added_mb > MOST_ADDED_MB:
            found.append(f"counting {self.fp32_mb:.0f} MB of FP32 takes {self.added_mb:.0f} MB")
        return found

    @property
    def closing(self) -> str:
        """What is said below the table."""
        return (
            f"Two threads that count a tensor each: {self.two_threads:.2f} times one thread. "
            f"Counting {self.fp32_mb:.0f} MB of FP32 takes {self.added_mb:.1f} MB beside them."
        )


def table(report: Report) -> list[str]:
    """The table in Markdown."""
    lines = [
        "| tensor | dtype | count | health | amax | read | count / amax |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for s in report.speeds:
        speeds = " | ".join(f"{s.gb_s[name]:.1f}" for name in CALLS)
        lines.append(f"| {s.distribution} | {str(s.dtype)[6:]} | {speeds} | {s.of_amax:.2f} |")
    return [*lines, "", f"GB/s of one thread. {report.closing} {report.about}."]


def best_seconds(call: Callable[[], object], seconds: float) -> float:
    """Shortest duration of one call."""
    return best_in_turns({"": call}, seconds)[""]


def fixed_costs(engine: Engine, seconds: float) -> None:
    """Print what a call costs on a small tensor, and what the error sums of a histogram cost."""
    small = torch.randn(4096).to(BF16)
    print(
        f"4,096 elements: count {1e6 * best_seconds(lambda: engine.count(small, BF16), seconds):.0f} us, ",
        end="",
    )
    print(f"health {1e6 * best_seconds(lambda: engine.health(small, BF16), seconds):.0f} us")
    counted = engine.count(torch.exp(2 * torch.randn(1 << 20)).to(BF16), BF16)
    requests = [(np.float32(3.7), E4M3), (np.float32(1.3), E4M3), (np.float32(1000), E5M2), (np.float32(1), E5M2)]
    sums = best_seconds(lambda: engine.error_sums(counted.values, counted.counts, requests), seconds)
    print(f"error sums, {counted.values.size} values, {len(requests)} requests: {1e6 * sums:.0f} us")
    x = torch.randn(1 << 20)
    of_x = engine.count(x, torch.float32)
    sums = best_seconds(lambda: engine.tensor_error_sums(x, requests, of_x), seconds)
    print(f"error sums of FP32 elements: {1e9 * sums / x.numel() / len(requests):.2f} ns an element and request")


def measure(engine: Engine, n: int, seconds: float) -> Report:
    """Measure every distribution in both dtypes, two threads, and the memory that FP32 takes."""
    from pages import machine

    found = distributions(n)
    speeds = [
        tensor_speed(engine, name, tensors[dtype], seconds) for dtype in (BF16, FP32) for name, tensors in found.items()
    ]
    large = torch.randn(1 << 25, generator=torch.Generator().manual_seed(0))
    threads = two_threads(engine, large[: 1 << 22].to(BF16), 2 * seconds)
    about = f"Engine {engine.name}, {n:,} elements, {machine()}, torch {torch.__version__}; {date.today()}"
    return Report(about, speeds, threads, added_mb(partial(engine.count, large, BF16)), large.nbytes / 1e6)


def main() -> int:
    """Measure, print, fail where a limit is missed if asked to."""
    from pages import replace_section

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("numba", "torch"))
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each tensor")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is missed")
    parser.add_argument("--markdown", type=Path, help="page whose block `kernels` is replaced")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine = load_engine(arguments.engine)
    engine.warm_up()
    report = measure(engine, arguments.elements, arguments.seconds)
    print("\n".join(table(report)))
    fixed_costs(engine, arguments.seconds / 10)
    if arguments.markdown:
        replace_section(arguments.markdown, "kernels", table(report))
    for miss in report.missed:
        print(f"limit missed: {miss}")
    return int(arguments.check and bool(report.missed))


if __name__ == "__main__":
    raise SystemExit(main())
