"""How fast one thread measures a tensor: GB/s of tensor memory, beside torch.aminmax of the same tensor.

    python benchmarks/kernels.py [--engine numba|torch] [--elements N] [--seconds S]

Each number is the best of the repeats that fit into the time, so that a busy machine disturbs it little.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from fp8debug.formats import E4M3, E5M2
from fp8debug.hooks.measure import Engine, load_engine


def distributions(n: int) -> dict[str, torch.Tensor]:
    """FP32 vectors of n elements that are hard for counting in different ways."""
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(n, generator=g)
    bits = torch.randint(-(1 << 15), 1 << 15, (n,), generator=g, dtype=torch.int32).to(torch.int16)
    return {
        "zero": torch.zeros(n),
        "relu": normal.relu(),
        "normal": normal,
        "log-normal": torch.exp(4 * torch.randn(n, generator=g)) * normal.sign(),
        "log-uniform": torch.exp((torch.rand(n, generator=g) - 0.5) * 80) * normal.sign(),
        "random bits": bits.view(torch.bfloat16).float(),
    }


def best_seconds(call: Callable[[], object], seconds: float) -> float:
    """Shortest duration of one call."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def tensor_speeds(engine: Engine, n: int, seconds: float) -> None:
    """Print one line for each distribution and dtype."""
    print(f"{'':12} {'dtype':8} {'count':>7} {'health':>7} {'aminmax':>8}  GB/s   health/aminmax, count/aminmax (time)")
    for name, values in distributions(n).items():
        for dtype in (torch.bfloat16, torch.float32):
            t = values.to(dtype)
            size = t.numel() * t.element_size() / 1e9
            count = best_seconds(partial(engine.count, t, torch.bfloat16), seconds)
            health = best_seconds(partial(engine.health, t, torch.bfloat16), seconds)
            aminmax = best_seconds(partial(torch.aminmax, t), seconds)
            speeds = f"{size / count:7.2f} {size / health:7.2f} {size / aminmax:8.2f}"
            ratios = f"{health / aminmax:5.2f} {count / aminmax:5.2f}"
            print(f"{name:12} {str(dtype)[6:]:8} {speeds}         {ratios}")


def fixed_costs(engine: Engine, seconds: float) -> None:
    """Print what a call costs on a small tensor, and what the error sums of a histogram cost."""
    small = torch.randn(4096).to(torch.bfloat16)
    print(
        f"4,096 elements: count {1e6 * best_seconds(lambda: engine.count(small, torch.bfloat16), seconds):.0f} us, ",
        end="",
    )
    print(f"health {1e6 * best_seconds(lambda: engine.health(small, torch.bfloat16), seconds):.0f} us")
    counted = engine.count(torch.exp(2 * torch.randn(1 << 20)).to(torch.bfloat16), torch.bfloat16)
    requests = [(np.float32(3.7), E4M3), (np.float32(1.3), E4M3), (np.float32(1000), E5M2), (np.float32(1), E5M2)]
    sums = best_seconds(lambda: engine.error_sums(counted.values, counted.counts, requests), seconds)
    print(f"error sums, {counted.values.size} values, {len(requests)} requests: {1e6 * sums:.0f} us")
    x = torch.randn(1 << 20)
    of_x = engine.count(x, torch.float32)
    sums = best_seconds(lambda: engine.tensor_error_sums(x, requests, of_x), seconds)
    print(f"error sums of FP32 elements: {1e9 * sums / x.numel() / len(requests):.2f} ns an element and request")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("numba", "torch"))
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each number")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine = load_engine(arguments.engine)
    engine.warm_up()
    print(f"engine {engine.name}, {arguments.elements:,} elements, one thread")
    tensor_speeds(engine, arguments.elements, arguments.seconds)
    fixed_costs(engine, arguments.seconds)


if __name__ == "__main__":
    main()
