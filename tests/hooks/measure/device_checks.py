"""What any kernels for a device must say of a tensor: what the engine of the host says of it, bit for bit.

    TRITON_INTERPRET=1 python tests/hooks/measure/device_checks.py

runs Triton's kernels through its interpreter; that has to be asked for before Triton is imported, so in a process of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fp8debug.hooks.measure import load_engine, nonfinite_rows
from fp8debug.hooks.measure.device import DeviceCounter
from fp8debug.hooks.measure.device.kernels import Kernels

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
ROUTES = [(BF16, BF16), (FP16, FP16), (FP32, BF16), (FP32, FP16), (FP32, FP32), *((f, f) for f in FP8)]
ENGINE = load_engine("torch")


def distributions(n: int) -> dict[str, torch.Tensor]:
    """FP32 vectors of n elements: those that are hard for counting in different ways, and those that are not finite."""
    g = torch.Generator().manual_seed(n)
    normal, uniform = torch.randn(n, generator=g), torch.rand(n, generator=g)
    bits = torch.randint(-(1 << 31), 1 << 31, (n,), generator=g, dtype=torch.int64).to(torch.int32)
    specials = torch.tensor(
        [torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-40, -(2.0**-25)]
    )
    return {
        "zero": torch.zeros(n),
        "ReLU": normal.relu(),
        "Gaussian": normal,
        "log-uniform": torch.exp((uniform - 0.5) * 170) * normal.sign(),
        "random bits": bits.view(FP32),
        "negative zero": torch.copysign(torch.zeros(n), normal),
        "constant": torch.full((n,), -1.5),
        "two values": (normal > 0).float() * 3,
        "not finite": torch.where(uniform < 0.05, specials[torch.randint(0, 10, (n,), generator=g)], normal),
    }


def layouts() -> Iterator[torch.Tensor]:
    """Tensors that are no vectors, or not contiguous, or begin between two words."""
    whole = distributions(15 * 77)["not finite"]
    yield whole.reshape(15, 77)
    yield whole.reshape(15, 77).t()
    yield whole.reshape(3, 5, 77)[:, ::3, 1:]
    yield whole[1:1000]
    yield whole[:1].reshape(())
    yield torch.full((1, 1), torch.nan)


def check(counter: DeviceCounter, t: torch.Tensor, gemm_dtype: torch.dtype) -> None:
    """Compare health, histogram, checksum and non-finite rows."""
    expected = ENGINE.count(t, gemm_dtype)
    seen = t.to(gemm_dtype) if t.dtype is FP32 else t
    rows = nonfinite_rows(seen) if expected.health.has_nonfinite else (0, None)
    assert counter.health(t, gemm_dtype).reading() == (expected.health, None, rows)
    health, counted, found_rows = counter.count(t, gemm_dtype).reading()
    assert counted is not None
    assert (health, counted.health, found_rows) == (expected.health, expected.health, rows)
    assert (counted.checksum, counted.approx) == (expected.checksum, expected.approx)
    assert (counted.values.dtype.name, counted.counts.dtype.name) == ("float32", "int64")
    np.testing.assert_array_equal(counted.values.view(np.uint32), expected.values.view(np.uint32))
    np.testing.assert_array_equal(counted.counts, expected.counts)


def check_all(kernels: Kernels, sizes: tuple[int, ...], *, all_dtypes_of: tuple[str, ...] | None = None) -> int:
    """Check every distribution, dtype, size and layout; returns how many tensors that were.

    Args:
        all_dtypes_of: distributions that are checked in every dtype, the others in BF16 alone; default: all.
    """
    counter, n_checked = DeviceCounter(kernels), 0
    cases = [
        (values, route)
        for n in sizes
        for name, values in distributions(n).items()
        for route in (ROUTES if all_dtypes_of is None or name in all_dtypes_of else ROUTES[:1])
    ]
    cases += [(t, (FP32, FP32)) for t in layouts()]
    for values, (dtype, gemm_dtype) in cases:
        check(counter, values.to(dtype), gemm_dtype)
        n_checked += 1
    return n_checked


if __name__ == "__main__":
    from fp8debug.hooks.measure.device import triton_kernels

    triton_kernels.BLOCK, triton_kernels.PROGRAMS = 512, 2  # several programs, several blocks each
    with np.errstate(over="ignore"):  # of casts to FP16
        print(check_all(triton_kernels.TritonKernels(), (1300,), all_dtypes_of=("not finite",)), "tensors")
