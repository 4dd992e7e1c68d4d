"""Known numbers about low-precision formats, expected beside measured with fp8debug's own functions.

    python benchmarks/credibility.py [--markdown docs/credibility.md]

Synthetic tensors from fixed seeds, numpy alone. Exit code 1 when a number is out of its tolerance. docs/credibility.md
says for each number what it shows and why it is so.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pages import machine, replace_section

import fp8debug
from fp8debug.accumulation import PROMOTED_EVERY, hopper
from fp8debug.blocks import QuantizedBlocks, block_amax, quantize_blocks
from fp8debug.formats import E2M1, E4M3, E5M2, Float32Array, Format, fake_quantize, overflows
from fp8debug.metrics import ErrorSums, RankedHistogram, low_order, rel_l2, sqnr_db
from fp8debug.recipes import MXFP4, MXFP8, NVFP4, BlockRecipe, CurrentScaling

Float64Array = npt.NDArray[np.float64]

GAPS_DB: dict[Format, dict[float, float]] = {
    E4M3: {2: 10.0, 1: 23.0, 0.5: 30.8, 0: 31.5, -9: 31.5, -11: 31.4, -12: 30.0, -13: 26.3, -14: 20.4},
    E5M2: {1: 21.8, -12: 25.6},
}
"""SQNR by scale gap, in bits: mean over Gaussian tensors of 512 x 512."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is drawn: more only makes the numbers steadier."""

    matrix: int = 2048
    """Lines and columns of a Gaussian matrix."""
    blocks: int = 1 << 18
    """Blocks of 32 whose maxima are counted."""
    gap_tensors: int = 24
    """Tensors of 512 x 512 that the gap table is the mean of: a maximum varies from tensor to tensor."""
    outputs: int = 48
    """Rows and columns of a GEMM."""


@dataclass(frozen=True, slots=True)
class Row:
    """One known number."""

    claim: str
    unit: str
    expected: float
    measured: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the measured number is the expected one."""
        return abs(self.measured - self.expected) <= self.tolerance

    @property
    def cells(self) -> tuple[str, ...]:
        """As the tables show it."""
        numbers = (f"{number:.4g} {self.unit}" for number in (self.expected, self.measured))
        return (self.claim, *numbers, f"{self.tolerance:g}", "yes" if self.ok else "NO")


def rows(sizes: Sizes) -> Iterator[Row]:
    """Every number, in the order of the page."""
    sections = (gaussian, block_maxima, saturation, layer_norm, scale_gap, accumulation)
    return chain.from_iterable(section(sizes) for section in sections)


def gaussian(sizes: Sizes) -> Iterator[Row]:
    """SQNR of a Gaussian under a good scale."""
    x = normal(1, (sizes.matrix, sizes.matrix))
    for fmt, expected in ((E4M3, 31.5), (E5M2, 25.6)):
        measured = decibel(ranked(x).error_sums(current_scale(x, fmt), fmt))
        yield Row(f"Gaussian, {fmt.name}, one scale for the tensor", "dB", expected, measured, 0.1)
    recipes: tuple[tuple[BlockRecipe, str, Format, float], ...] = (
        (MXFP8(), "MXFP8, scales rounded up", E4M3, 31.5),
        (MXFP8(scale_rule="floor"), "MXFP8, floor rule", E4M3, 30.6),
        (NVFP4(), "NVFP4", E2M1, 20.4),
        (MXFP4(), "MXFP4", E2M1, 18.8),
    )
    for recipe, name, fmt, expected in recipes:
        measured = decibel(block_sums(x, quantize_blocks(x, recipe, "x", fmt)))
        yield Row(f"Gaussian, {name}", "dB", expected, measured, 0.1)


def block_maxima(sizes: Sizes) -> Iterator[Row]:
    """What NVFP4's E4M3 scales leave of the largest element of a block."""
    x = normal(2, (sizes.matrix, sizes.matrix))
    tile = NVFP4().tile("x")
    before, after = (block_amax(t, tile) for t in (x, quantize_blocks(x, NVFP4(), "x", E2M1).values))
    error = 100 * np.abs(after.astype(np.float64) / before - 1)
    yield Row("NVFP4, error of a block's maximum, mean", "%", 2.3, float(error.mean()), 0.15)
    yield Row("NVFP4, error of a block's maximum, largest", "%", 100 / 17, float(error.max()), 0.02)


def saturation(sizes: Sizes) -> Iterator[Row]:
    """Blocks whose largest element is beyond 448 after scaling."""
    rng = np.random.default_rng(3)
    log_uniform = np.exp2(rng.uniform(-20, 20, sizes.blocks)).astype(np.float32)
    elements = rng.standard_normal((sizes.blocks, 32), dtype=np.float32)
    kinds = {"log-uniform": (log_uniform, 19.3), "Gaussian": (block_amax(elements, MXFP8().tile("x")), 16.8)}
    for rule in ("floor", "rceil"):
        for kind, (amax, under_floor) in kinds.items():
            clipped = 100 * float(np.mean(scaled_maxima(amax, rule) > E4M3.max))
            expected, tolerance = (under_floor, 0.4) if rule == "floor" else (0.0, 0.0)
            yield Row(f"MXFP8, {rule}: blocks with a maximum beyond 448, {kind}", "%", expected, clipped, tolerance)
    beyond = overflows(scaled_maxima(log_uniform, "floor"), E4M3)
    claim = "MXFP8, floor: blocks with a maximum that rounds beyond 448, log-uniform"
    yield Row(claim, "%", 100 * (1 - math.log2(464 / 256)), 100 * float(beyond.mean()), 0.4)


def layer_norm(sizes: Sizes) -> Iterator[Row]:
    """Gains of a LayerNorm, clustered below a power of two."""
    gains = np.random.default_rng(4).uniform(0.88, 0.99, (sizes.matrix, 256)).astype(np.float32)
    floor, rceil = (quantize_blocks(gains, MXFP8(scale_rule=rule), "x", E4M3).values for rule in ("floor", "rceil"))
    share = 100 * float(np.mean(floor == np.float32(0.875)))
    yield Row("Gains U(0.88, 0.99), MXFP8 floor: share that becomes 0.875", "%", 100, share, 0)
    yield Row("Gains U(0.88, 0.99), MXFP8 floor: bias", "%", -6.3, bias(floor, gains), 0.05)
    yield Row("Gains U(0.88, 0.99), MXFP8 rceil: bias", "%", -0.06, bias(rceil, gains), 0.02)


def scale_gap(sizes: Sizes) -> Iterator[Row]:
    """A Gaussian under a scale that is off by a power of two."""
    cases = [(fmt, gap) for fmt, expected in GAPS_DB.items() for gap in expected]
    measured = np.zeros((sizes.gap_tensors, len(cases)))
    for i, line in enumerate(measured):
        x = normal(100 + i, (512, 512))
        histogram = ranked(x)
        line[:] = [
            decibel(histogram.error_sums(current_scale(x, fmt) * np.float32(2.0**gap), fmt)) for fmt, gap in cases
        ]
    for (fmt, gap), found in zip(cases, measured.mean(axis=0), strict=True):
        tolerance = 0.7 if gap > 0.5 else 0.3
        yield Row(f"Gaussian, {fmt.name}, scale gap {gap:+g} bits", "dB", GAPS_DB[fmt][gap], float(found), tolerance)


def accumulation(sizes: Sizes) -> Iterator[Row]:
    """GEMMs over 4,096 products as Hopper's tensor cores accumulate them, against exact sums of the same operands."""
    rng = np.random.default_rng(5)
    shape = (2, sizes.outputs, 4096)
    a, b = (scaled(x) for x in rng.random(shape, dtype=np.float32))
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    for how, every, expected, tolerance in (("fast", None, -7.3, 0.3), ("promoted", PROMOTED_EVERY, -0.05, 0.01)):
        measured = bias(hopper(a, b, promote_every=every), exact)
        yield Row(f"Hopper, {how}, U(0, 1), K = 4096: bias", "%", expected, measured, tolerance)
    a, b = (scaled(x) for x in rng.standard_normal(shape, dtype=np.float32))
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    for how, every, expected, tolerance in (("fast", None, 0.13, 0.01), ("promoted", PROMOTED_EVERY, 0.013, 0.001)):
        error = hopper(a, b, promote_every=every) - exact
        sums = ErrorSums(n=exact.size, sum_x2=float(np.vdot(exact, exact)), sum_err2=float(np.vdot(error, error)))
        yield Row(f"Hopper, {how}, Gaussian, K = 4096: rel_l2", "%", expected, 100 * (rel_l2(sums) or 0), tolerance)


def normal(seed: int, shape: tuple[int, int]) -> Float32Array:
    """Standard normal values."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def current_scale(x: Float32Array, fmt: Format) -> np.float32:
    """Scale of current scaling."""
    return CurrentScaling().scale(float(np.abs(x).max()), fmt)


def scaled(x: Float32Array) -> Float32Array:
    """Values of E4M3 under current scaling, still scaled: a GEMM operand."""
    return fake_quantize(x * current_scale(x, E4M3), E4M3)


def scaled_maxima(amax: Float32Array, rule: str) -> Float32Array:
    """Maxima of blocks as MXFP8 casts them."""
    return amax * MXFP8(scale_rule=rule).factors(amax, float(amax.max()), E4M3).encode


def ranked(x: Float32Array) -> RankedHistogram:
    """Each element as a value of its own."""
    return RankedHistogram(x.ravel(), np.ones(x.size, dtype=np.int64))


def block_sums(x: Float32Array, quantized: QuantizedBlocks) -> ErrorSums:
    """Error sums of a block recipe."""
    order = low_order(x.ravel())
    histogram = RankedHistogram(x.ravel(), np.ones(x.size, dtype=np.int64), order)
    return histogram.sums_of(quantized.values.ravel()[order], quantized.beyond.ravel()[order])


def decibel(sums: ErrorSums) -> float:
    """SQNR; NaN, hence out of every tolerance, where there is none."""
    found = sqnr_db(sums)
    return math.nan if found is None else found


def bias(q: Float32Array, x: Float32Array | Float64Array) -> float:
    """Mean relative error, in percent."""
    return 100 * float(np.mean(q.astype(np.float64) / x - 1))


def heading() -> str:
    """Machine, versions and day."""
    return f"{machine()}, numpy {np.__version__}, fp8debug {fp8debug.__version__}; {date.today()}"


def print_table(found: list[Row]) -> None:
    """The table for a terminal."""
    lines = [("claim", "expected", "measured", "tolerance", "ok"), *(row.cells for row in found)]
    for claim, expected, measured, tolerance, ok in lines:
        print(f"{claim:73} {expected:>9} {measured:>11} {tolerance:>9}  {ok}")


def markdown(found: list[Row]) -> Iterator[str]:
    """The table for a page."""
    yield "| claim | expected | measured | tolerance | ok |"
    yield "| --- | --- | --- | --- | --- |"
    yield from (f"| {' | '.join(row.cells)} |" for row in found)
    yield from ("", f"{heading()}.")


def main() -> int:
    """Measure, print the table, fail where a number is out of its tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, help="page whose table is replaced")
    args = parser.parse_args()
    found = list(rows(Sizes()))
    print(heading())
    print_table(found)
    if args.markdown:
        replace_section(args.markdown, "credibility", markdown(found))
    return int(not all(row.ok for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
