"""Compiled counting: how often each 16-bit code occurs in a piece of memory.

A counter is a load, an addition and a store. The smaller the table, the nearer its cache: codes spread over tens of
thousands of values are counted by 8-bit counters, most tensors by 16-bit ones; whether one has overflowed is known from
their sum, and then the chunk is counted once more. Repeats of one code wait for each other's store, so a crowded tensor
(half of it zero after a ReLU) is counted into four tables of 32-bit counters, one a lane of the 64-bit word, side by
side in memory, and where most of it is one value, runs of equal words are counted as one. A look at some places of each
chunk decides.

Memory is asked for well before it is read: the additions alone keep the processor too busy to look that far ahead.

Numba does not see a change in a function of another file when it loads this one from its cache: kernels call only
kernels of their own file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.hooks.measure.counting.jit import kernel, prefetch

Codes16 = npt.NDArray[np.uint16]
Codes32 = npt.NDArray[np.uint32]
Table = npt.NDArray[Any]
Table8 = npt.NDArray[np.uint8]
Table16 = npt.NDArray[np.uint16]
Table32 = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]

CODES = 1 << 16
CHUNK = 1 << 20
"""Elements for which one kind of table is chosen. A code in fewer than 1 of 16 cannot overflow a 16-bit counter."""
STAGE = 2048
"""FP32 elements rounded at a time; the buffer stays in the nearest cache."""
PROBES = 512
"""Places of a chunk that are looked at, four neighbours each."""
CROWDED = 12
"""Of 3 * PROBES pairs of neighbours, how many may be equal: a code with a share of 9 % gives as many."""
IN_RUNS = 3 * PROBES // 2
"""How many are when most elements are of one value: then equal words are worth looking for."""
SPREAD = 100
"""Of 4 * PROBES codes, how many may have been seen before: evenly spread over 20,000 codes, as many have."""
RARE = 5
"""How often one of them may be seen: more than what overflows an 8-bit counter in a chunk, but else nothing is sure."""

BYTE, NARROW, WIDE, RUNS = 0, 1, 2, 3
"""Ways to count; one whose table has overflowed gives way to the next. The last two share a table."""

_U64 = np.uint64
_LOW, _S16, _S32, _S48 = _U64(0xFFFF), _U64(16), _U64(32), _U64(48)
_0, _1, _2, _3, _4 = _U64(0), _U64(1), _U64(2), _U64(3), _U64(4)
_AHEAD = 256
"""Words between what is asked for and what is read."""


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
    """Round FP32 patterns to BF16 ones, to nearest, ties to even; a NaN becomes some quiet one."""
    for i in range(codes.size):
        code = codes[i]
        lowest_kept = np.uint32(np.uint32(code >> np.uint32(16)) & np.uint32(1))
        rounded = np.uint32(np.uint32(code + np.uint32(0x7FFF)) + lowest_kept) >> np.uint32(16)
        # A NaN would be carried into the sign or to infinity. It keeps its upper bits: one code for all were crowded.
        nan = np.uint32(code & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint16(np.uint32(code >> np.uint32(16)) | np.uint32(0x40) if nan else np.uint32(rounded))


# Every loop below takes the words to count and the memory they were made of: the same, or twice as many FP32 words.


@kernel(
    "void(uint64[::1], uint64[::1], uint8[::1], uint64[::1])",
    "void(uint64[::1], uint64[::1], uint16[::1], uint64[::1])",
)
def _count_flat(words: Words, memory: Words, table: Table, sums: Words) -> None:
    s1, s2 = sums[0], sums[1]
    is_rounded = memory.size > words.size
    for i in range(words.size):
        word = words[i]
        if is_rounded:
            prefetch(memory, 2 * i + _AHEAD)
            s1 += memory[2 * i]
            s2 += s1
            s1 += memory[2 * i + 1]
        else:
            prefetch(memory, i + _AHEAD)
            s1 += word
        s2 += s1
        table[word & _LOW] += 1
        table[(word >> _S16) & _LOW] += 1
        table[(word >> _S32) & _LOW] += 1
        table[word >> _S48] += 1
    sums[0], sums[1] = s1, s2


@kernel("void(uint64, uint32, uint32[::1])")
def _add_lanes(word: np.uint64, times: np.uint32, tables: Table32) -> None:
    tables[(word & _LOW) * _4] += times
    tables[((word >> _S16) & _LOW) * _4 + _1] += times
    tables[((word >> _S32) & _LOW) * _4 + _2] += times
    tables[(word >> _S48) * _4 + _3] += times


@kernel("void(uint64[::1], uint64[::1], uint32[::1], uint64[::1])")
def _count_wide(words: Words, memory: Words, tables: Table32, sums: Words) -> None:
    s1, s2 = sums[0], sums[1]
    is_rounded = memory.size > words.size
    for i in range(words.size):
        word = words[i]
        if is_rounded:
            prefetch(memory, 2 * i + _AHEAD)
            s1 += memory[2 * i]
            s2 += s1
            s1 += memory[2 * i + 1]
        else:
            prefetch(memory, i + _AHEAD)
            s1 += word
        s2 += s1
        _add_lanes(word, np.uint32(1), tables)
    sums[0], sums[1] = s1, s2


@kernel("void(uint64[::1], uint64[::1], uint32[::1], uint64[::1])")
def _count_runs(words: Words, memory: Words, tables: Table32, sums: Words) -> None:
    s1, s2 = sums[0], sums[1]
    is_rounded = memory.size > words.size
    fours = words.size // 4 * 4
    for i in range(0, fours, 4):
        a, b, c, d = words[i], words[i + 1], words[i + 2], words[i + 3]
        if a == b and b == c and c == d:
            _add_lanes(a, np.uint32(4), tables)
        else:
            _add_lanes(a, np.uint32(1), tables)
            _add_lanes(b, np.uint32(1), tables)
            _add_lanes(c, np.uint32(1), tables)
            _add_lanes(d, np.uint32(1), tables)
        if is_rounded:
            prefetch(memory, 2 * i + _AHEAD)
            for j in range(2 * i, 2 * i + 8):
                s1 += memory[j]
                s2 += s1
        else:
            prefetch(memory, i + _AHEAD)
            for j in range(i, i + 4):
                s1 += memory[j]
                s2 += s1
    for i in range(fours, words.size):
        _add_lanes(words[i], np.uint32(1), tables)
    for j in range(fours * (2 if is_rounded else 1), memory.size):
        s1 += memory[j]
        s2 += s1
    sums[0], sums[1] = s1, s2


@kernel("int64(uint16[::1], int64, uint8[::1])")
def _kind(halves: Codes16, width: int, seen: Table8) -> int:
    """Choose the table for codes that are the last of every `width` halves.

    Args:
        seen: zeros on entry and return, (65536,).
    """
    last, size = width - 1, halves.size // width
    step = max(size // PROBES, 4)
    equal, before, most = 0, 0, 0
    for i in range(0, size - 3, step):
        at = i * width + last
        a, b, c, d = halves[at], halves[at + width], halves[at + 2 * width], halves[at + 3 * width]
        equal += int(a == b) + int(c == d) + int(a == c)
        for code in (a, b, c, d):
            times = min(int(seen[code]), RARE)
            before += int(times > 0)
            most = max(most, times)
            seen[code] = times + 1
    for i in range(0, size - 3, step):
        for j in range(4):
            seen[halves[(i + j) * width + last]] = 0
    if equal > CROWDED:
        return RUNS if equal > IN_RUNS else WIDE
    return BYTE if before <= SPREAD and most < RARE else NARROW


@kernel("boolean(uint64[::1], int64)")
def _used(words: Words, start: int) -> bool:
    """Whether any of the 8 words (a cache line) from `start` is not zero."""
    used: bool = (
        words[start] | words[start + 1] | words[start + 2] | words[start + 3]
        | words[start + 4] | words[start + 5] | words[start + 6] | words[start + 7]
    ) != _0  # fmt: skip
    return used


@kernel("void(uint8[::1], uint32[::1])", "void(uint16[::1], uint32[::1])")
def _move(line: Table, dense: Table32) -> None:
    for i in range(line.size):
        dense[i] += np.uint32(line[i])
    line[:] = 0


@kernel("boolean(uint8[::1], uint32[::1], int64)", "boolean(uint16[::1], uint32[::1], int64)")
def _drain_flat(table: Table, dense: Table32, expected: int) -> bool:
    """Move the table into `dense`; when a counter has overflowed only empty it, and return False."""
    total = 0
    for i in range(CODES):
        total += int(table[i])
    if total != expected:
        table[:] = 0
        return False
    words = table.view(np.uint64)
    codes_a_line = 64 // table.itemsize
    for line in range(CODES // codes_a_line):
        if _used(words, line * 8):
            first, end = line * codes_a_line, (line + 1) * codes_a_line
            _move(table[first:end], dense[first:end])
    return True


@kernel("void(uint32[::1], uint32[::1])")
def drain_wide(tables: Table32, dense: Table32) -> None:
    """Move the four tables into `dense`."""
    words = tables.view(np.uint64)
    for line in range(CODES // 4):
        if _used(words, line * 8):
            for code in range(line * 4, line * 4 + 4):
                dense[code] += tables[4 * code] + tables[4 * code + 1] + tables[4 * code + 2] + tables[4 * code + 3]
            tables[line * 16 : line * 16 + 16] = 0


@kernel("void(uint16[::1], int64, uint8[::1], uint16[::1], uint32[::1], uint64[::1])")
def _count_whole(chunk: Codes16, kind: int, byte: Table8, narrow: Table16, wide: Table32, sums: Words) -> None:
    words = chunk.view(np.uint64)
    if kind == BYTE:
        _count_flat(words, words, byte, sums)
    elif kind == NARROW:
        _count_flat(words, words, narrow, sums)
    elif kind == WIDE:
        _count_wide(words, words, wide, sums)
    else:
        _count_runs(words, words, wide, sums)


@kernel("void(uint32[::1], int64, uint16[::1], uint8[::1], uint16[::1], uint32[::1], uint64[::1])")
def _count_staged(
    chunk: Codes32, kind: int, stage: Codes16, byte: Table8, narrow: Table16, wide: Table32, sums: Words
) -> None:
    for start in range(0, chunk.size, STAGE):
        part = chunk[start : min(start + STAGE, chunk.size)]
        round_bf16(part, stage)
        words, memory = stage[: part.size].view(np.uint64), part.view(np.uint64)
        if kind == BYTE:
            _count_flat(words, memory, byte, sums)
        elif kind == NARROW:
            _count_flat(words, memory, narrow, sums)
        elif kind == WIDE:
            _count_wide(words, memory, wide, sums)
        else:
            _count_runs(words, memory, wide, sums)


@kernel("boolean(uint8[::1], uint16[::1], uint32[::1], int64, int64)")
def _drained(byte: Table8, narrow: Table16, dense: Table32, kind: int, expected: int) -> bool:
    if kind == BYTE:
        return _drain_flat(byte, dense, expected)
    return kind >= WIDE or _drain_flat(narrow, dense, expected)


@kernel("boolean(uint16[::1], uint8[::1], uint16[::1], uint32[::1], uint32[::1], uint64[::1])")
def count_codes(codes: Codes16, byte: Table8, narrow: Table16, wide: Table32, dense: Table32, sums: Words) -> bool:
    """Count codes and advance the checksum of their memory; return whether anything is in `wide` now.

    Args:
        codes: (n,), n < 2^31, at an address divisible by 8; only the last call of a tensor may have n % 4 != 0.
        byte, narrow: zeros on entry and return, (65536,).
        wide: four tables side by side, (4 * 65536,); a part of the counts stays there until `drain_wide`.
        dense: the other part, (65536,).
        sums: the two sums of the checksum.
    """
    whole = codes.size // 4 * 4
    used_wide = False
    for start in range(0, whole, CHUNK):
        chunk = codes[start : min(start + CHUNK, whole)]
        kind, before, before2 = _kind(chunk, 1, byte), sums[0], sums[1]
        _count_whole(chunk, kind, byte, narrow, wide, sums)
        while not _drained(byte, narrow, dense, kind, chunk.size):
            sums[0], sums[1] = before, before2
            kind += 1
            _count_whole(chunk, kind, byte, narrow, wide, sums)
        used_wide |= kind >= WIDE
    if whole < codes.size:
        word = _0
        for i in range(whole, codes.size):
            dense[codes[i]] += np.uint32(1)
            word |= _U64(codes[i]) << _U64(16 * (i - whole))
        sums[0] += word
        sums[1] += sums[0]
    return used_wide


@kernel("boolean(uint32[::1], uint16[::1], uint8[::1], uint16[::1], uint32[::1], uint32[::1], uint64[::1])")
def count_rounded(
    codes: Codes32, stage: Codes16, byte: Table8, narrow: Table16, wide: Table32, dense: Table32, sums: Words
) -> bool:
    """Count FP32 patterns as the BF16 ones they round to, and advance the checksum of the FP32 memory.

    Returns whether anything is in `wide` now.

    Args:
        codes: (n,), as in `count_codes`.
        stage: buffer, (STAGE,), at an address divisible by 8.
    """
    whole = codes.size // 4 * 4
    used_wide = False
    for start in range(0, whole, CHUNK):
        chunk = codes[start : min(start + CHUNK, whole)]
        # The upper halves are the codes, but for the rounding.
        kind, before, before2 = _kind(chunk.view(np.uint16), 2, byte), sums[0], sums[1]
        _count_staged(chunk, kind, stage, byte, narrow, wide, sums)
        while not _drained(byte, narrow, dense, kind, chunk.size):
            sums[0], sums[1] = before, before2
            kind += 1
            _count_staged(chunk, kind, stage, byte, narrow, wide, sums)
        used_wide |= kind >= WIDE
    rest = codes[whole:]
    round_bf16(rest, stage)
    for i in range(rest.size):
        dense[stage[i]] += np.uint32(1)
    for i in range(0, rest.size, 2):
        sums[0] += _U64(rest[i]) | (_U64(rest[i + 1]) << _S32 if i + 1 < rest.size else _0)
        sums[1] += sums[0]
    return used_wide
