"""Compiled counting: how often each 16-bit code occurs in a piece of memory.

A counter is a load, an addition and a store. Repeats of one code wait for each other's store, so a crowded tensor (half
of it zero after a ReLU) is counted into four tables, one a lane of the 64-bit word, side by side in memory; runs of
equal words are counted as one. A tensor without a frequent code goes into one table of 16-bit counters instead, small
enough for the nearest cache. A look at a few hundred places of each chunk decides.

Numba does not see a change in a function of another file when it loads this one from its cache: kernels call only
kernels of their own file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fp8debug.hooks.measure.counting.jit import kernel

Codes16 = npt.NDArray[np.uint16]
Codes32 = npt.NDArray[np.uint32]
Table16 = npt.NDArray[np.uint16]
Table32 = npt.NDArray[np.uint32]
Int64 = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

CODES = 1 << 16
CHUNK = 1 << 20
"""Elements for which one kind of table is chosen. A code in fewer than 1 of 16 cannot overflow a 16-bit counter."""
STAGE = 4096
"""FP32 elements rounded at a time; the buffer stays in the nearest cache."""
PROBES = 512
CROWDED = 12
"""Of 3 * PROBES pairs of neighbours, how many may be equal: a code with a share of 9 % gives as many."""

_U64 = np.uint64
_LOW, _S16, _S32, _S48 = _U64(0xFFFF), _U64(16), _U64(32), _U64(48)
_0, _1, _2, _3, _4 = _U64(0), _U64(1), _U64(2), _U64(3), _U64(4)


@kernel("void(uint64[::1], uint64[::1])")
def fletcher(words: Words, sums: Words) -> None:
    """Advance the two sums of the checksum over whole words."""
    s1, s2 = sums[0], sums[1]
    for i in range(words.size):
        s1 += words[i]
        s2 += s1
    sums[0], sums[1] = s1, s2


@kernel("void(uint32[::1], uint16[::1])")
def round_bf16(codes: Codes32, out: Codes16) -> None:
    """Round FP32 patterns to BF16 ones, to nearest, ties to even; every NaN becomes 0x7FC0."""
    for i in range(codes.size):
        code = codes[i]
        lowest_kept = np.uint32(np.uint32(code >> np.uint32(16)) & np.uint32(1))
        rounded = np.uint32(np.uint32(code + np.uint32(0x7FFF)) + lowest_kept)
        # A NaN would be carried into the sign or to infinity.
        nan = np.uint32(code & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint16(np.uint32(0x7FC0) if nan else np.uint32(rounded >> np.uint32(16)))


@kernel("void(uint64[::1], uint16[::1], uint64[::1])")
def _count_narrow(words: Words, table: Table16, sums: Words) -> None:
    s1, s2 = sums[0], sums[1]
    for i in range(words.size):
        word = words[i]
        s1 += word
        s2 += s1
        table[word & _LOW] += np.uint16(1)
        table[(word >> _S16) & _LOW] += np.uint16(1)
        table[(word >> _S32) & _LOW] += np.uint16(1)
        table[word >> _S48] += np.uint16(1)
    sums[0], sums[1] = s1, s2


@kernel("void(uint64, uint64, uint32[::1])")
def _add_run(word: np.uint64, times: np.uint64, tables: Table32) -> None:
    times32 = np.uint32(times)
    tables[(word & _LOW) * _4] += times32
    tables[((word >> _S16) & _LOW) * _4 + _1] += times32
    tables[((word >> _S32) & _LOW) * _4 + _2] += times32
    tables[(word >> _S48) * _4 + _3] += times32


@kernel("void(uint64[::1], uint32[::1], uint64[::1])")
def _count_wide(words: Words, tables: Table32, sums: Words) -> None:
    s1, s2, last, run = sums[0], sums[1], _0, _0
    for i in range(words.size):
        word = words[i]
        s1 += word
        s2 += s1
        if word == last:
            run += _1
        else:
            _add_run(last, run, tables)
            last, run = word, _1
    _add_run(last, run, tables)
    sums[0], sums[1] = s1, s2


@kernel("boolean(uint16[::1])")
def _crowded(codes: Codes16) -> bool:
    equal = 0
    for i in range(0, codes.size - 3, max(codes.size // PROBES, 4)):
        a, b, c, d = codes[i], codes[i + 1], codes[i + 2], codes[i + 3]
        equal += int(a == b) + int(c == d) + int(a == c)
    return equal > CROWDED


@kernel("boolean(uint64[::1], int64)")
def _used(words: Words, start: int) -> bool:
    """Whether any of the 8 words (a cache line) from `start` is not zero."""
    used: bool = (
        words[start] | words[start + 1] | words[start + 2] | words[start + 3]
        | words[start + 4] | words[start + 5] | words[start + 6] | words[start + 7]
    ) != _0  # fmt: skip
    return used


@kernel("boolean(uint16[::1], uint32[::1], int64)")
def _drain_narrow(table: Table16, dense: Table32, expected: int) -> bool:
    """Move the table into `dense`; when a counter has overflowed only empty it, and return False."""
    words = table.view(np.uint64)
    total = 0
    for line in range(CODES // 32):
        if _used(words, line * 8):
            for code in range(line * 32, line * 32 + 32):
                total += int(table[code])
    for line in range(CODES // 32):
        if _used(words, line * 8):
            for code in range(line * 32, line * 32 + 32):
                dense[code] += np.uint32(table[code] if total == expected else 0)
                table[code] = 0
    return total == expected


@kernel("void(uint32[::1], uint32[::1])")
def drain_wide(tables: Table32, dense: Table32) -> None:
    """Move the four tables into `dense`."""
    words = tables.view(np.uint64)
    for line in range(CODES // 4):
        if _used(words, line * 8):
            for code in range(line * 4, line * 4 + 4):
                dense[code] += tables[4 * code] + tables[4 * code + 1] + tables[4 * code + 2] + tables[4 * code + 3]
            tables[line * 16 : line * 16 + 16] = 0


@kernel("boolean(uint16[::1], uint16[::1], uint32[::1], uint32[::1], uint64[::1])")
def count_codes(codes: Codes16, narrow: Table16, wide: Table32, dense: Table32, sums: Words) -> bool:
    """Count codes and advance the checksum of their memory; return whether anything is in `wide` now.

    Args:
        codes: (n,), n < 2^31, at an address divisible by 8; only the last call of a tensor may have n % 4 != 0.
        narrow: zeros on entry and return, (65536,).
        wide: four tables side by side, (4 * 65536,); a part of the counts stays there until `drain_wide`.
        dense: the other part, (65536,).
        sums: the two sums of the checksum.
    """
    whole = codes.size // 4 * 4
    used_wide = False
    for start in range(0, whole, CHUNK):
        chunk = codes[start : min(start + CHUNK, whole)]
        words = chunk.view(np.uint64)
        if not _crowded(chunk):
            before, before2 = sums[0], sums[1]
            _count_narrow(words, narrow, sums)
            if _drain_narrow(narrow, dense, chunk.size):
                continue
            sums[0], sums[1] = before, before2
        _count_wide(words, wide, sums)
        used_wide = True
    if whole < codes.size:
        word = _0
        for i in range(whole, codes.size):
            dense[codes[i]] += np.uint32(1)
            word |= _U64(codes[i]) << _U64(16 * (i - whole))
        sums[0] += word
        sums[1] += sums[0]
    return used_wide


@kernel("boolean(uint32[::1], uint16[::1], uint16[::1], uint32[::1], uint32[::1], uint64[::1], uint64[::1])")
def count_rounded(
    codes: Codes32, stage: Codes16, narrow: Table16, wide: Table32, dense: Table32, sums: Words, unused: Words
) -> bool:
    """Count FP32 patterns as the BF16 ones they round to, and advance the checksum of the FP32 memory.

    Returns whether anything is in `wide` now.

    Args:
        codes: (n,), as in `count_codes` with n % 2.
        stage: buffer, (STAGE,).
        unused: (2,), overwritten.
    """
    used_wide = False
    for start in range(0, codes.size, CHUNK):
        chunk = codes[start : start + CHUNK]
        round_bf16(chunk[:STAGE], stage)
        is_narrow = not _crowded(stage[: min(STAGE, chunk.size)])
        whole = chunk.size // 4 * 4
        for _attempt in range(2):
            for i in range(0, whole, STAGE):
                part = chunk[i : min(i + STAGE, whole)]
                round_bf16(part, stage)
                words = stage[: part.size].view(np.uint64)
                if is_narrow:
                    _count_narrow(words, narrow, unused)
                else:
                    _count_wide(words, wide, unused)
            if not is_narrow or _drain_narrow(narrow, dense, whole):
                break
            is_narrow = False
        used_wide |= not is_narrow
        round_bf16(chunk[whole:], stage)
        for i in range(chunk.size - whole):
            dense[stage[i]] += np.uint32(1)
    words = codes[: codes.size // 2 * 2].view(np.uint64)
    fletcher(words, sums)
    if codes.size % 2:
        sums[0] += _U64(codes[codes.size - 1])
        sums[1] += sums[0]
    return used_wide


@kernel("int64(uint32[::1], uint16, uint16[::1], int64[::1], int64[::1])")
def extract(dense: Table32, infinity: np.uint16, codes: Codes16, counts: Int64, found: Int64) -> int:
    """Empty `dense` into a sparse list of the finite codes, in order, and return its length.

    Args:
        dense: zeros on return, (65536,).
        infinity: code of positive infinity; larger magnitudes are NaN.
        codes, counts: the list, in the first places, (65536,).
        found: zeros, negative zeros, NaN, +Inf, -Inf, smallest non-zero finite magnitude (0: none), largest, (7,).
    """
    words = dense.view(np.uint64)
    size = 0
    found[:] = 0
    for line in range(CODES // 16):
        if not _used(words, line * 8):
            continue
        for code in range(line * 16, line * 16 + 16):
            count = int(dense[code])
            if count == 0:
                continue
            dense[code] = 0
            magnitude = code & 0x7FFF
            if magnitude < infinity:
                codes[size] = code
                counts[size] = count
                size += 1
                if magnitude == 0:
                    found[0] += count
                    found[1] += count if code else 0
                else:
                    found[5] = magnitude if found[5] == 0 else min(found[5], magnitude)
                    found[6] = max(found[6], magnitude)
            elif magnitude > infinity:
                found[2] += count
            else:
                found[4 if code > infinity else 3] += count
    return size
