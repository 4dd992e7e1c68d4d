"""Every cast against ml_dtypes and gfloat: all BF16 and FP16 patterns, midpoints, and 2^24 random FP32 patterns.

    python benchmarks/exhaustive_casts.py [--patterns 16777216] [--chunk 1048576]

For each format, saturated (`saturate`) or left to become NaN or infinity as the format has them (`keep`): how often
the codes of numpy and torch differ from ml_dtypes under the stated policies (E8M0: from exact exponents), and how often
from gfloat and ml_dtypes where these agree. Every pattern is asked of all of them. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from cast_oracles import agreed_codes, around_values, every_bf16, every_fp16, exact_e8m0_codes, random_fp32

from fp8debug import formats
from fp8debug.formats import FORMATS, Float32Array, Format
from fp8debug.hooks.measure import codecs

_DIFFERENCES = ("numpy differs", "torch differs", "torch values differ from numpy", "differs where both agree")
_COUNTED = ("patterns", *_DIFFERENCES[:3], "ml_dtypes and gfloat agree", _DIFFERENCES[3])


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description="Compare every cast with ml_dtypes and gfloat.")
    parser.add_argument("--patterns", type=int, default=1 << 24, help="random FP32 patterns for each format")
    parser.add_argument("--chunk", type=int, default=1 << 20, help="patterns at a time")
    args = parser.parse_args()
    print(" | ".join(("format", "overflow", *_COUNTED, "seconds")))
    n_different = 0
    for fmt in FORMATS.values():
        for saturate in (True, False):
            started = time.perf_counter()
            total = sum((compare(x, fmt, saturate) for x in inputs(fmt, args.patterns, args.chunk)), Counter[str]())
            row = [fmt.name, "saturate" if saturate else "keep", *(f"{total[name]:,}" for name in _COUNTED)]
            print(" | ".join((*row, f"{time.perf_counter() - started:.1f}")), flush=True)
            n_different += sum(total[name] for name in _DIFFERENCES)
    print("No difference." if n_different == 0 else f"{n_different:,} differences.")
    return 1 if n_different else 0


def compare(x: Float32Array, fmt: Format, saturate: bool) -> Counter[str]:
    """Counts of _COUNTED for one piece of the input."""
    codes, agreed = agreed_codes(x, fmt, saturate)
    expected = exact_e8m0_codes(x, saturate) if fmt.is_scale else codes
    ours, values = formats.encode(x, fmt, saturate=saturate), formats.fake_quantize(x, fmt)
    t = torch.from_numpy(x)
    torch_codes = codecs.encode(t, fmt, saturate=saturate).view(torch.uint8).numpy()
    torch_values = codecs.fake_quantize(t, fmt).numpy()
    same = (values.view(np.uint32) == torch_values.view(np.uint32)) | (np.isnan(values) & np.isnan(torch_values))
    counts = (x.size, ours != expected, torch_codes != expected, ~same, agreed, agreed & (ours != codes))
    return Counter({name: int(np.sum(found)) for name, found in zip(_COUNTED, counts, strict=True)})


def inputs(fmt: Format, n_random: int, chunk: int) -> Iterator[Float32Array]:
    """All that is asked, in pieces."""
    yield every_bf16()
    yield every_fp16()
    yield around_values(fmt)
    for seed, start in enumerate(range(0, n_random, chunk)):
        yield random_fp32(min(chunk, n_random - start), seed)


if __name__ == "__main__":
    sys.exit(main())
