"""NaN and infinity in any parameter, quantised or not; padding told from the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.mixup import formats_mixed_up
from fp8debug.analysis.checkpoint.checks.names import ranges_of
from fp8debug.analysis.checkpoint.facts import LineRanges
from fp8debug.analysis.checkpoint.measuring.plain import FLOATS, lines_nonfinite
from fp8debug.analysis.checkpoint.records import CheckPlace

_SHOWN = 5
_SCANNED_ROWS = 256
_FEWEST_PADDED = 2
_LEAST_VALID = 0.25
"""Share of the rows of a matrix that have to come before those that are all NaN, if these are padding."""

Rows = list[tuple[int, int, int]]
"""Number of the matrix, first and last (inclusive) row in it."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A tensor that holds something that is not finite."""

    name: str
    shape: tuple[int, ...]
    n: int
    n_nan: int
    n_inf: int
    lines: LineRanges
    is_codes: bool
    may_be_infinite: bool = False
    """Whether n_nan counts infinities, too."""

    @property
    def rows(self) -> int:
        """Lines of one matrix; 1 for vectors."""
        return self.shape[-2] if len(self.shape) > 1 else 1

    @property
    def pieces(self) -> Rows:
        """Rows that are not finite, by matrix."""
        found = []
        for first, last in self.lines.ranges:
            for matrix in range(first // self.rows, last // self.rows + 1):
                start = matrix * self.rows
                found.append((matrix, max(first - start, 0), min(last - start, self.rows - 1)))
        return found

    @property
    def words(self) -> str:
        """`3 NaN and 1 infinite of 4,096`."""
        parts = [f"{n:,} {word}" for n, word in ((self.n_nan, "NaN"), (self.n_inf, "infinite")) if n]
        if self.is_codes:
            parts = [f"{self.n_nan:,} NaN{' or infinite' if self.may_be_infinite else ''}"]
        return f"{' and '.join(parts)} of {self.n:,}"


def nonfinite(subject: Subject) -> Iterator[Hit]:
    """Parameters that are not finite; rows of padding are told apart."""
    odd = list(_odd(subject))
    of = len(subject.facts.plain) + len(subject.facts.codes)
    for one in odd:
        for check, message, n_rows in _judged(subject, one):
            place = CheckPlace(
                one.name,
                message,
                numbers={"n_nan": one.n_nan, "n_inf": one.n_inf, "n": one.n, "n_rows": n_rows},
                brief=message.removeprefix(f"{one.name}: ").removesuffix("."),
            )
            # A mask of attention that is kept with the weights is meant to be infinite.
            severity = "note" if one.n_nan == 0 and "mask" in one.name.rpartition(".")[2] else None
            yield Hit(check, place, of=of, severity=severity, weight=(one.n_nan + one.n_inf) / one.n)


def _odd(subject: Subject) -> Iterator[Odd]:
    for name, facts in subject.facts.plain.items():
        if facts.n_nan or facts.n_inf:
            shape = subject.store.tensors[name].shape
            yield Odd(name, shape, facts.n, facts.n_nan, facts.n_inf, facts.nonfinite_lines, False)
    mixed_up = formats_mixed_up(subject)  # whose NaN are none
    for one in subject.convention.quantised:
        codes = subject.facts.codes.get(one.name)
        if codes is not None and codes.n_nan and one.fmt not in mixed_up:
            yield Odd(one.name, one.shape, codes.n, codes.n_nan, 0, codes.nan_lines, True, one.fmt == "E5M2")


def _judged(subject: Subject, odd: Odd) -> Iterator[tuple[str, str, int]]:
    """Check, message and rows: of what counts as padding, and of the rest."""
    check = "code_nan" if odd.is_codes else "nonfinite"
    if len(odd.shape) < 2:
        yield check, f"{odd.name}: {odd.words}.", 1
        return
    first = _first_padded_row(subject, odd)
    valid, padded = _split(odd.pieces, odd.rows if first is None else first)
    more = odd.lines.n - _n(odd.pieces)
    if valid or more:
        rest = f" and in the {_n(padded):,} padded rows from {first} on" if padded else ""
        yield check, f"{odd.name}: {odd.words}, {_rows_words(odd, valid, more)}{rest}.", _n(valid) + more
    if padded:
        each = "" if odd.rows * odd.shape[-1] == odd.n else " of a matrix"
        message = (
            f"{odd.name}: {_n(padded):,} padded rows non-finite (rows {first}-{odd.rows - 1}{each}); "
            f"{'not all' if valid else 'all'} rows before {first} are finite."
        )
        yield "padding_nonfinite", message, _n(padded)


def _first_padded_row(subject: Subject, odd: Odd) -> int | None:
    """The row from which on rows are padding: as given, as a reference has it, or since all matrices end with NaN."""
    if odd.name in subject.reference_rows:
        return subject.reference_rows[odd.name]
    if subject.valid_rows is not None:
        return subject.valid_rows if subject.valid_rows < odd.rows else None
    tails = [piece for piece in odd.pieces if piece[2] == odd.rows - 1]
    if not tails or odd.lines.n > _n(odd.pieces):  # more were found than were kept
        return None
    matrix, first, _ = min(tails, key=lambda piece: piece[1])
    if odd.n_nan + odd.n_inf < odd.lines.n * odd.shape[-1]:
        whole = _first_whole_row(subject, odd, matrix, first)
        if whole is None:
            return None
        first = whole
    return first if _LEAST_VALID * odd.rows <= first <= odd.rows - _FEWEST_PADDED else None


def _first_whole_row(subject: Subject, odd: Odd, matrix: int, first: int) -> int | None:
    """The first row of the tail of a matrix, which begins at row `first`, from which on no element is finite."""
    stored = subject.store.tensors[odd.name]
    if stored.dtype not in FLOATS:
        return None
    start = matrix * odd.rows
    end = min(odd.rows, first + _SCANNED_ROWS)
    counts = lines_nonfinite(subject.store, stored, start + first, start + end)
    partial = np.flatnonzero(counts < stored.length)
    whole = first + int(partial[-1]) + 1 if partial.size else first
    return whole if whole < end else None


def _split(pieces: Rows, first: int) -> tuple[Rows, Rows]:
    """The rows before row `first` of their matrix, and those from it on."""
    valid = [(matrix, start, min(last, first - 1)) for matrix, start, last in pieces if start < first]
    padded = [(matrix, max(start, first), last) for matrix, start, last in pieces if last >= first]
    return valid, padded


def _n(rows: Rows) -> int:
    return sum(last - start + 1 for _, start, last in rows)


def _rows_words(odd: Odd, rows: Rows, more: int) -> str:
    """`in row 63`, `in 40 rows: 2, 5-7, ...`, `in row 3 of matrix 7`."""
    n = _n(rows) + more
    is_stack = odd.rows * odd.shape[-1] < odd.n
    shown = [
        ranges_of(range(start, last + 1)) + (f" of matrix {matrix}" if is_stack else "")
        for matrix, start, last in rows[:_SHOWN]
    ]
    listed = ", ".join(shown) + (", ..." if len(rows) > _SHOWN or more else "")
    return f"in row {listed}" if n == 1 else f"in {n:,} rows: {listed}"
