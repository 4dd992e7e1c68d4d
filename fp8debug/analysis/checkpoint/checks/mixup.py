"""Codes of OCP E4M3 in a file that says FNUZ, or the reverse: told by the codes that do and do not occur."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fp8debug.analysis.checkpoint.checks.coded import Coded, by_format
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.facts import Int64Array
from fp8debug.analysis.checkpoint.records import CheckPlace
from fp8debug.formats import Format

_NEARLY_ALL = 0.9
_SELDOM = 0.01
_FEWEST_ZEROS = 8
_LINE_OF_NAN = 0.5
"""Share of the codes of lines that have some, from which on it is lines that are NaN."""


def formats_mixed_up(subject: Subject) -> set[str]:
    """Formats whose codes are of another one."""
    return {fmt.name for fmt, tensors in by_format(subject).items() if why_mixed_up(fmt, tensors)}


def mixed_up(fmt: Format, tensors: Sequence[Coded], why: str) -> Iterator[Hit]:
    """One hit a tensor; `why` as `why_mixed_up` says."""
    is_fnuz = fmt.name.endswith("FNUZ")
    other = fmt.name.removesuffix("FNUZ") if is_fnuz else f"{fmt.name}FNUZ"
    for one in tensors:
        message = (
            f"{one.quantised.name} is stored as {fmt.name}, but {why}: a format mix-up, not a scale error. The same "
            f"byte of {other} means {'twice' if is_fnuz else 'half'} as much."
        )
        place = CheckPlace(
            one.quantised.name, message, 0.5 if is_fnuz else 2.0, brief=f"{one.facts.n_nan:,} codes that are NaN here"
        )
        yield Hit("code_format_mixup", place, len(tensors), weight=one.facts.n_nan / one.facts.n)


def why_mixed_up(fmt: Format, tensors: Sequence[Coded]) -> str:
    """Why the codes are of the other format; empty: they are not, or nothing tells."""
    if fmt.name == "E4M3FNUZ":
        return _why_fn(tensors)
    return _why_fnuz(tensors) if fmt.name == "E4M3" else ""


def _why_fn(tensors: Sequence[Coded]) -> str:
    """OCP E4M3 has -0 where FNUZ has NaN, and ends at 0x7E, where FNUZ goes to 0x7F."""
    histogram, n_nan = _histogram(tensors), sum(map(_scattered, tensors))
    n_blocks = sum(one.n for one in tensors)
    top = max((int(np.flatnonzero(one.largest)[-1]) for one in tensors if one.n), default=0)
    is_seldom = histogram[0x80] <= max(3 * histogram[0x00], _SELDOM * histogram.sum())
    if not n_nan or top > 0x7E or not is_seldom:
        return ""
    if sum(int(one.largest[0x7E]) for one in tensors) >= _NEARLY_ALL * n_blocks > 0:
        return f"{n_nan:,} codes of the checkpoint are 0x80, NaN here, -0 in E4M3, and blocks end at 0x7E as there"
    if sum(_scattered(one) > 0 for one in tensors) * 2 > len(tensors):
        return f"{n_nan:,} codes of the checkpoint are 0x80, NaN here, -0 in E4M3, and none is its largest, 0x7F"
    return ""


def _why_fnuz(tensors: Sequence[Coded]) -> str:
    """FNUZ has no -0, and 0x7F is its largest where OCP E4M3 has NaN: as many codes as blocks reach it."""
    histogram, n_nan = _histogram(tensors), sum(map(_scattered, tensors))
    n = sum(one.facts.n for one in tensors)
    n_blocks = sum(max(one.facts.n_blocks, 1) for one in tensors)
    has_zeros_of_one_sign = histogram[0x00] >= _FEWEST_ZEROS and not histogram[0x80]
    is_everywhere = all(map(_scattered, tensors))
    if not n_nan or not is_everywhere or not has_zeros_of_one_sign or n_nan > _SELDOM * n + 4 * n_blocks:
        return ""
    return f"every tensor has codes 0x7F or 0xFF ({n_nan:,}), NaN here, the largest in E4M3FNUZ, and none is -0"


def _scattered(one: Coded) -> int:
    """Codes that are NaN; 0 where they fill lines, as values that were NaN before they were rounded do."""
    facts = one.facts
    return facts.n_nan if facts.n_nan < _LINE_OF_NAN * facts.nan_lines.n * one.quantised.length else 0


def _histogram(tensors: Sequence[Coded]) -> Int64Array:
    found: Int64Array = np.zeros(256, np.int64)
    for one in tensors:
        found += one.facts.histogram
    return found
