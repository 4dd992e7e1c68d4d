"""How fast an accelerator measures tensors where they are: GB/s of tensor memory, beside a copy on the device.

    python benchmarks/device.py [--elements N] [--repeats N] [--check] [--markdown docs/performance.md]
    python benchmarks/device.py --interpret

Each repeat times counting, health and the copy one after the other, by events on the device; told are the median and
the quartiles of GB/s, and the median of the ratio to the copy of the same repeat. Every result is compared with the
host's, and counting is run once where torch raises an error when the host waits for the device. Where there is no
accelerator the script says so and ends well. `--check` exits 1 where a result is wrong or the host has waited.

`--interpret` runs Triton's kernels on the CPU, through its interpreter: whether they are right, not how fast.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import numpy as np
import torch
from pages import replace_section

from fp8debug.hooks.measure import load_engine
from fp8debug.hooks.measure.device import Arriving, DeviceCounter, is_on_accelerator
from fp8debug.hooks.measure.device.kernels import Kernels
from fp8debug.hooks.measure.device.torch_kernels import TorchKernels

ROUTES = {"BF16": (torch.bfloat16, torch.bfloat16), "FP32 as BF16": (torch.float32, torch.bfloat16)}
INTERPRETED = ROUTES | {
    "FP16": (torch.float16, torch.float16),
    "FP32": (torch.float32, torch.float32),
    "E4M3": (torch.float8_e4m3fn, torch.float8_e4m3fn),
}
AHEAD = 50
"""Copies that the device does before what is timed, so that the host is ahead of it."""


def distributions(n: int) -> dict[str, torch.Tensor]:
    """FP32 vectors of n elements, on the CPU, that are hard for counting in different ways."""
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(n, generator=g)
    bits = torch.randint(-(1 << 15), 1 << 15, (n,), generator=g, dtype=torch.int32).to(torch.int16)
    return {
        "all zero": torch.zeros(n),
        "ReLU": normal.relu(),
        "Gaussian": normal,
        "log-uniform": torch.exp((torch.rand(n, generator=g) - 0.5) * 80) * normal.sign(),
        "random bits": bits.view(torch.bfloat16).float(),
    }


def is_right(counter: DeviceCounter, t: torch.Tensor, gemm_dtype: torch.dtype) -> bool:
    """Whether health, histogram and checksum are those of the host's engine."""
    expected = load_engine("torch").count(t.cpu(), gemm_dtype)
    health, counted, _ = counter.count(t, gemm_dtype).reading()
    return (
        counted is not None
        and health == counter.health(t, gemm_dtype).reading().health == expected.health
        and counted.checksum == expected.checksum
        and np.array_equal(counted.values, expected.values)
        and np.array_equal(counted.counts, expected.counts)
    )


@contextmanager
def waiting_is_an_error(device: torch.device) -> Iterator[None]:
    """Have torch raise when the host waits for the device; only CUDA can."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def waits(counter: DeviceCounter, t: torch.Tensor, gemm_dtype: torch.dtype) -> str | None:
    """What the host has waited for in counting and health, after the first time; None: for nothing."""
    try:
        with waiting_is_an_error(t.device):
            arriving = [counter.count(t, gemm_dtype), counter.health(t, gemm_dtype)]
    except RuntimeError as error:
        return str(error).splitlines()[0]
    for one in arriving:
        one.reading()
    return None


@dataclass(frozen=True)
class Line:
    """What was measured of one distribution, dtype and way."""

    kernels: str
    dtype: str
    distribution: str
    what: str
    gb_per_s: list[float]
    """Of each repeat."""
    to_copy: list[float]
    """Speed of the copy divided by this one's, of each repeat."""
    host_us: float
    """Median time that the host takes to ask."""

    def cells(self) -> tuple[str, ...]:
        """As a row of the table."""
        low, middle, high = quantiles(self.gb_per_s, n=4)
        speed = f"{middle:.0f} ({low:.0f}-{high:.0f})"
        head = (self.kernels, self.dtype, self.distribution, self.what)
        return (*head, speed, f"{median(self.to_copy):.2f}", f"{self.host_us:.0f}")


def seconds(call: Callable[[], object], ahead: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Time of the device between two events around a call, and of the host until it came back.

    `ahead` gives the device work until the host has asked for all of it, so that the host's pace is not measured.
    """
    module = torch.get_device_module(device)
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    ahead()
    start.record()
    began_s = time.perf_counter()
    result = call()
    host_s = time.perf_counter() - began_s
    end.record()
    end.synchronize()
    if isinstance(result, Arriving):
        result.reading()
    return start.elapsed_time(end) / 1e3, host_s


def speeds(
    counter: DeviceCounter, names: tuple[str, str, str], t: torch.Tensor, gemm: torch.dtype, n: int
) -> list[Line]:
    """Counting and health of one tensor, n repeats."""
    copy, found = partial(torch.empty_like(t).copy_, t), []
    calls: dict[str, Callable[[], object]] = {
        "copy": copy,
        "count": partial(counter.count, t, gemm),
        "health": partial(counter.health, t, gemm),
    }
    times: dict[str, list[tuple[float, float]]] = {what: [] for what in calls}

    def ahead() -> None:
        for _ in range(AHEAD):
            copy()

    for _ in range(n):
        for what, call in calls.items():
            times[what].append(seconds(call, ahead, t.device))
    for what in ("count", "health"):
        device_s, host_s = (list(column) for column in zip(*times[what], strict=True))
        to_copy = [own / copied for own, (copied, _) in zip(device_s, times["copy"], strict=True)]
        found.append(Line(*names, what, [t.nbytes / s / 1e9 for s in device_s], to_copy, median(host_s) * 1e6))
    return found


def measure(device: torch.device, n: int, repeats: int) -> tuple[list[Line], list[str]]:
    """All lines, and what is wrong."""
    lines, wrong = [], []
    best = DeviceCounter(note=print).kernels_of(device)
    ways: list[Kernels] = [best] if isinstance(best, TorchKernels) else [best, TorchKernels()]
    for kernels in ways:
        counter = DeviceCounter(kernels)
        for dtype, (source, gemm_dtype) in ROUTES.items():
            for name, values in distributions(n).items():
                t = values.to(source).to(device)
                if not is_right(counter, t, gemm_dtype):
                    wrong.append(f"{kernels.name}, {dtype}, {name}: not what the host counts")
                if (waited := waits(counter, t, gemm_dtype)) is not None:
                    wrong.append(f"{kernels.name}, {dtype}, {name}: the host has waited: {waited}")
                lines += speeds(counter, (kernels.name, dtype, name), t, gemm_dtype, repeats)
    return lines, wrong


def table(lines: list[Line], device: torch.device) -> list[str]:
    """The lines as Markdown."""
    head = ("kernels", "dtype", "values", "what", "GB/s, median (quartiles)", "time, copy = 1", "host, µs")
    name = torch.get_device_module(device).get_device_name(device)
    rows = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *(line.cells() for line in lines))]
    return [*rows, "", f"{name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}."]


def interpret() -> list[str]:
    """Check Triton's kernels on the CPU; returns what is wrong."""
    from fp8debug.hooks.measure.device import triton_kernels

    triton_kernels.BLOCK, triton_kernels.PROGRAMS = 1024, 2
    counter, wrong = DeviceCounter(triton_kernels.TritonKernels()), []
    for dtype, (source, gemm_dtype) in INTERPRETED.items():
        for name, values in distributions(3000).items():
            with np.errstate(over="ignore"):
                right = is_right(counter, values.to(source), gemm_dtype)
            print(f"{dtype:12} {name:12} {'right' if right else 'WRONG'}")
            if not right:
                wrong.append(f"{dtype}, {name}")
    return wrong


def main() -> None:
    """Print the table, or why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    if args.interpret:
        if wrong := interpret():
            raise SystemExit(f"wrong: {'; '.join(wrong)}")
        return
    device = torch.device(next((kind for kind in ("cuda", "xpu") if _is_there(kind)), "cpu"))
    if not is_on_accelerator(torch.empty(0, device=device)):
        print("no accelerator here: nothing was measured; --interpret checks the kernels on the CPU")
        return
    lines, wrong = measure(device, args.elements, args.repeats)
    made = table(lines, device)
    print("\n".join(made))
    if args.markdown is not None:
        replace_section(args.markdown, "device", made)
    for one in wrong:
        print(one, file=sys.stderr)
    if args.check and wrong:
        raise SystemExit(1)


def _is_there(kind: str) -> bool:
    module: Any = getattr(torch, kind, None)
    return module is not None and bool(module.is_available())


if __name__ == "__main__":
    main()
