"""Measuring on a device in one pass each: kernels written in Triton.

Counting is bound by additions to the same counter, which take turns. Tensors with few distinct values would stand
still: a tensor of zeros would be one long queue. So, in each block of elements, zeros and those with the block's lowest
and highest code are counted by a reduction and added at once, which leaves nothing to do for constant tensors, masks of
two values and the half of a ReLU that is zero; what is left is added one by one to one of `TABLES` tables, program i to
table i modulo `TABLES`, so that few programs meet at a counter. Sorting each block, which would do for any values,
costs an order of magnitude more instructions than the bandwidth allows; tables in shared memory do not hold 65,536
counters. The tables, `TABLES` times 256 KiB, are gone after the launch; an addition to a 32-bit counter is safe up to
2^31 elements of one value and table.

The kernels are tested through Triton's interpreter and compiled for GPUs: that says that they are right and that they
compile, not that they are fast. `n` may be specialised, since loads are wide only where it is known to be a multiple of
16. Importing this module imports Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fp8debug.hooks.measure import codes
from fp8debug.hooks.measure.device import tally as places
from fp8debug.hooks.measure.device.tally import Tally, bad_codes, new_tally

TABLES = 16
BLOCK = 1024
"""Elements that a program looks at at once."""
PROGRAMS = 2048
"""At most so many; each goes over the tensor in strides."""
WARPS = 4
"""Eight elements a thread: one load of 16 bytes of BF16, and registers for some twenty warps a multiprocessor."""
_ROUNDING = {torch.bfloat16: 1, torch.float16: 2}
"""What FP32 is rounded to; 0: nothing."""
_PATTERNS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

_LARGEST = tl.constexpr(places.LARGEST)
_FARTHEST = tl.constexpr(places.FARTHEST)
_N_ZERO, _N_NEG_ZERO, _N_NAN = (tl.constexpr(p) for p in (places.N_ZERO, places.N_NEG_ZERO, places.N_NAN))
_N_POSINF, _N_NEGINF, _AMAX = (tl.constexpr(p) for p in (places.N_POSINF, places.N_NEGINF, places.AMAX))
_AMIN_GAP, _FIRST_GAP = tl.constexpr(places.AMIN_GAP), tl.constexpr(places.FIRST_GAP)
_SUM_1, _SUM_2 = tl.constexpr(places.SUM_1), tl.constexpr(places.SUM_2)


@triton.jit
def _code(raw: tl.tensor, WIDTH: tl.constexpr, ROUND: tl.constexpr) -> tl.tensor:
    """Code of each pattern as int32, rounded to nearest even where ROUND says so; of 4 bytes with its sign."""
    if ROUND == 1:
        size = raw & 0x7FFFFFFF
        rounded = (size + 0x7FFF + ((size >> 16) & 1)) >> 16
        return tl.where(size > 0x7F800000, 0x7FC0, rounded) | ((raw >> 16) & 0x8000)
    elif ROUND == 2:
        half = raw.to(tl.float32, bitcast=True).to(tl.float16)
        return half.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    elif WIDTH == 4:
        return raw
    elif WIDTH == 2:
        return raw.to(tl.int32) & 0xFFFF
    else:
        return raw.to(tl.int32)


@triton.jit
def _add(place: tl.tensor, flags: tl.tensor) -> None:
    """Add the number of flags that are set."""
    tl.atomic_add(place, tl.sum(flags.to(tl.int32), 0).to(tl.int64), sem="relaxed")


@triton.jit
def _mark(
    bad: tl.tensor, start: tl.tensor, lane: tl.tensor, head: tl.tensor, flags: tl.tensor, row_length: tl.tensor,
    HAS_FLAGS: tl.constexpr, IS_SHORT: tl.constexpr,
) -> None:  # fmt: skip
    """Note the rows of elements that are not finite, of which there are some."""
    at = start + lane
    tl.atomic_max(head + _FIRST_GAP, tl.max(tl.where(bad, _FARTHEST - at, 0), 0), sem="relaxed")
    if HAS_FLAGS:
        # Dividing 32 bits takes a fraction of the registers.
        row = at.to(tl.int32) // row_length.to(tl.int32) if IS_SHORT else at // row_length
        tl.store(flags + row, tl.full(bad.shape, 1, tl.uint8), mask=bad)


@triton.jit(do_not_specialize=["first", "row_length"])
def _health(
    bits: tl.tensor, head: tl.tensor, flags: tl.tensor, n: tl.tensor, first: tl.tensor, row_length: tl.tensor,
    WIDTH: tl.constexpr, ROUND: tl.constexpr, SIGN: tl.constexpr, INFINITY: tl.constexpr,
    HAS_FLAGS: tl.constexpr, IS_SHORT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Extremes, zeros and what is not finite: kept by lane, reduced once a program; what is rare, at once."""
    lane = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    n_zero = tl.zeros((BLOCK,), tl.int32)
    n_neg_zero = tl.zeros((BLOCK,), tl.int32)
    amax = tl.zeros((BLOCK,), tl.int32)
    amin_gap = tl.zeros((BLOCK,), tl.int32)
    while start < n:
        inside = lane < tl.minimum(n - start, BLOCK).to(tl.int32)
        code = _code(tl.load(bits + start + lane, mask=inside, other=0), WIDTH, ROUND)
        size = code & SIGN
        negative = code != size
        zero = inside & (size == 0)
        finite = size < INFINITY
        n_zero += zero.to(tl.int32)
        n_neg_zero += (zero & negative).to(tl.int32)
        amax = tl.maximum(amax, tl.where(finite, size, 0))
        amin_gap = tl.maximum(amin_gap, tl.where(finite & (size > 0), _LARGEST - size, 0))
        if tl.max(size, 0) >= INFINITY:
            infinite = size == INFINITY
            _add(head + _N_NAN, size > INFINITY)
            _add(head + _N_POSINF, infinite & (code == size))
            _add(head + _N_NEGINF, infinite & negative)
            _mark(size >= INFINITY, first + start, lane, head, flags, row_length, HAS_FLAGS, IS_SHORT)
        start += step
    tl.atomic_add(head + _N_ZERO, tl.sum(n_zero, 0).to(tl.int64), sem="relaxed")
    tl.atomic_add(head + _N_NEG_ZERO, tl.sum(n_neg_zero, 0).to(tl.int64), sem="relaxed")
    tl.atomic_max(head + _AMAX, tl.max(amax, 0).to(tl.int64), sem="relaxed")
    tl.atomic_max(head + _AMIN_GAP, tl.max(amin_gap, 0).to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["first", "n_words", "row_length"])
def _count(
    bits: tl.tensor, tables: tl.tensor, head: tl.tensor, flags: tl.tensor,
    n: tl.tensor, first: tl.tensor, n_words: tl.tensor, row_length: tl.tensor,
    WIDTH: tl.constexpr, ROUND: tl.constexpr, CODES: tl.constexpr, BAD_FROM: tl.constexpr, BAD_ALONE: tl.constexpr,
    MARKS: tl.constexpr, HAS_FLAGS: tl.constexpr, IS_SHORT: tl.constexpr, TABLES: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Occurrences of each code, and the two sums of the checksum over 64-bit words."""
    PER_WORD: tl.constexpr = 8 // WIDTH
    WORDS: tl.constexpr = BLOCK // PER_WORD
    table = tables + (tl.program_id(0) % TABLES) * CODES
    lane = tl.arange(0, BLOCK)
    word_lane = tl.arange(0, WORDS).to(tl.int64)
    shift = tl.arange(0, PER_WORD).to(tl.int64) * (8 * WIDTH)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    sum_1 = tl.zeros((WORDS,), tl.int64)
    sum_2 = tl.zeros((WORDS,), tl.int64)
    while start < n:
        inside = lane < tl.minimum(n - start, BLOCK).to(tl.int32)
        raw = tl.load(bits + start + lane, mask=inside, other=0)
        pieces = tl.reshape(raw.to(tl.int64) & ((1 << (8 * WIDTH)) - 1), (WORDS, PER_WORD))
        words = tl.sum(pieces << shift[None, :], 1)
        sum_1 += words
        sum_2 += words * (n_words - (first + start) // PER_WORD - word_lane)
        code = _code(raw, WIDTH, ROUND)
        rest = inside & (code != 0)
        low = tl.min(tl.where(rest, code, CODES - 1), 0)
        high = tl.max(tl.where(rest, code, 0), 0)
        is_low = rest & (code == low)
        is_high = rest & (code == high) & (code != low)
        tl.atomic_add(table, tl.sum((inside & (code == 0)).to(tl.int32), 0), sem="relaxed")
        tl.atomic_add(table + low, tl.sum(is_low.to(tl.int32), 0), sem="relaxed")
        tl.atomic_add(table + high, tl.sum(is_high.to(tl.int32), 0), sem="relaxed")
        one_by_one = rest & (code != low) & (code != high)
        tl.atomic_add(table + code, tl.full((BLOCK,), 1, tl.int32), mask=one_by_one, sem="relaxed")
        if MARKS:
            bad = inside & (((code & (CODES // 2 - 1)) >= BAD_FROM) | (code == BAD_ALONE))
            if tl.max(bad.to(tl.int32), 0) > 0:
                _mark(bad, first + start, lane, head, flags, row_length, HAS_FLAGS, IS_SHORT)
        start += step
    tl.atomic_add(head + _SUM_1, tl.sum(sum_1, 0), sem="relaxed")
    tl.atomic_add(head + _SUM_2, tl.sum(sum_2, 0), sem="relaxed")


class TritonKernels:
    """See `Kernels`; not for FP64."""

    name = "triton"

    def warm_up(self, device: torch.device) -> None:
        """Compile and run both kernels; raises whatever keeps them from running."""
        t = torch.ones(8, dtype=torch.bfloat16, device=device)
        tally = new_tally(t, codes.route(t.dtype, t.dtype), counts=True)
        self.add_counts(t, 0, tally)
        self.add_health(t, 0, tally)

    def add_health(self, block: torch.Tensor, first: int, tally: Tally) -> None:
        """Extremes, zeros and what is not finite, by element; not for FP8."""
        read_as = tally.read_as
        _health[_grid(block)](
            block.view(_PATTERNS[block.element_size()]), tally.head, _flags(tally),
            block.numel(), first, tally.row_length,
            WIDTH=block.element_size(), ROUND=_rounding(block, read_as), SIGN=(1 << (8 * read_as.itemsize - 1)) - 1,
            INFINITY=bad_codes(read_as).first, HAS_FLAGS=tally.flags is not None, IS_SHORT=tally.n < 1 << 31,
            BLOCK=BLOCK, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    def add_counts(self, block: torch.Tensor, first: int, tally: Tally) -> None:
        """Occurrences of each code, the sums of the checksum and, if the histogram says the health, non-finite rows."""
        counted, bad = tally.way.counted, bad_codes(tally.way.counted)
        n_codes = tally.counts.numel()
        tables = torch.zeros((TABLES, n_codes), dtype=torch.int32, device=block.device)
        _count[_grid(block)](
            block.view(_PATTERNS[block.element_size()]), tables, tally.head, _flags(tally),
            block.numel(), first, tally.n_words, tally.row_length,
            WIDTH=block.element_size(), ROUND=_rounding(block, counted), CODES=n_codes,
            BAD_FROM=bad.first, BAD_ALONE=bad.alone, MARKS=tally.health_by_counts,
            HAS_FLAGS=tally.flags is not None, IS_SHORT=tally.n < 1 << 31, TABLES=TABLES,
            BLOCK=BLOCK, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        tally.counts.add_(tables.sum(0, dtype=torch.int64))


def _grid(block: torch.Tensor) -> tuple[int]:
    return (min(PROGRAMS, triton.cdiv(block.numel(), BLOCK)),)


def _rounding(block: torch.Tensor, target: torch.dtype) -> int:
    return _ROUNDING.get(target, 0) if block.dtype is torch.float32 else 0


def _flags(tally: Tally) -> torch.Tensor:
    """A pointer, even where it is not used."""
    return tally.head if tally.flags is None else tally.flags
