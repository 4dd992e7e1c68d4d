"""From a scale that stands beside codes to how its numbers are applied to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fp8debug.analysis.checkpoint.convention.configuration import Stated
from fp8debug.analysis.checkpoint.convention.fitting import (
    KNOWN_BLOCKS,
    Fit,
    fit_blocks,
    fit_halves,
    fit_simple,
    fit_swizzled,
    grid_shape,
)
from fp8debug.analysis.checkpoint.convention.notes import Notes
from fp8debug.analysis.checkpoint.convention.pairing import Pairing
from fp8debug.analysis.checkpoint.dialects import Dialect
from fp8debug.analysis.checkpoint.dialects.dialect import Pair
from fp8debug.analysis.checkpoint.records import Misfit, Scale
from fp8debug.errors import UsageError, escape

MX_BLOCK: Pair = (1, 32)
NV_BLOCK: Pair = (1, 16)
_ENCODINGS = {"F8_E4M3": "E4M3", "F8_E5M2": "E5M2", "F8_E8M0": "E8M0", "U8": "E8M0"}
_HALVES = ("gate_up_proj", "gate_up", "w13", "w1w3")
"""Parameters that are two layers in one."""


class Applier:
    """Finds for every pairing how the scale is applied, the same way for all of one spelling."""

    def __init__(self, dialect: Dialect, stated: Stated, notes: Notes) -> None:
        self._dialect, self._stated, self._notes = dialect, stated, notes
        self._chosen: dict[tuple[str, str], Pair | None] = {}
        self._directions: dict[str, set[str]] = {}

    def prepare(self, pairings: Sequence[Pairing]) -> None:
        """Settle what only all of them together say: block sizes that nobody states, lines or columns."""
        open_ones: dict[tuple[str, str], list[Pairing]] = {}
        for one in pairings:
            simple = fit_simple(one.shape, one.scale.shape)
            if simple is not None and simple.layout in ("line", "column") and not simple.is_square:
                self._directions.setdefault(one.spelling.tail, set()).add(simple.layout)
            if simple is None and self._is_block_open(one):
                open_ones.setdefault((one.spelling.tail, one.scale.dtype), []).append(one)
        for (tail, dtype), ones in open_ones.items():
            self._chosen[tail, dtype] = _chosen_block(ones)

    def scale_of(self, one: Pairing) -> Scale | Misfit:
        """The scale and how it is applied, or why it cannot be.

        Raises:
            UsageError: it is for lines or for columns, and nothing says for which.
        """
        if not one.is_readable:
            return _misfit(one, f"it is stored as {one.scale.dtype}, which no scale of {self._dialect.title} is", ())
        fit = self._fit(one)
        if fit is None:
            return self._without_fit(one)
        if one.scale.dtype == "U8" and not self._bytes_are_exponents(one, fit):
            return _misfit(
                one,
                "it is stored as U8, and nothing says what its bytes mean: they would be E8M0 if each were for 32 "
                "columns, or if a configuration said ue8m0",
                (),
            )
        fit = self._settled(one, fit)
        self._tell(one, fit)
        return Scale(
            one.scale.name, one.spelling.kind, _encoding(one, fit), one.scale.shape,
            one.spelling.divides, fit.layout, fit.block, fit.is_transposed, one.module, fit.is_swizzled,
        )  # fmt: skip

    def _is_block_open(self, one: Pairing) -> bool:
        known = self._stated.blocks or one.own_block
        return "block" in one.spelling.layouts and not known and self._blocks_fit(one, self._given_blocks(one)) is None

    def _given_blocks(self, one: Pairing) -> tuple[Pair, ...]:
        """Block sizes that need no choice, those stated first."""
        if one.own_block is not None:
            return (one.own_block,)
        fixed = one.spelling.blocks if one.spelling.is_block_fixed else ()
        mx = (MX_BLOCK,) if one.is_exponents and not one.spelling.divides else ()
        return tuple(dict.fromkeys((*self._stated.blocks, *fixed, *mx)))

    def _blocks_fit(self, one: Pairing, blocks: Iterable[Pair]) -> Fit | None:
        blocks = list(blocks)
        ways = [fit_blocks]
        if one.may_be_swizzled:
            ways.insert(0, fit_swizzled)
        elif one.spelling.is_swizzled_otherwise:
            ways.append(fit_swizzled)
        found = (fit(one.shape, one.scale.shape, block) for fit in ways for block in blocks)
        fits = [fit for fit in found if fit is not None]
        return min(fits, key=lambda fit: fit.is_transposed, default=None)  # the first of those that are not

    def _fit(self, one: Pairing) -> Fit | None:
        """Blocks that are stated first: a small matrix may have one of them alone."""
        takes_blocks = one.spelling.kind == "weight" and ("block" in one.spelling.layouts or one.is_exponents)
        fit = self._blocks_fit(one, self._given_blocks(one)) if takes_blocks else None
        if fit is not None and not fit.is_transposed:
            return fit
        chosen = self._chosen.get((one.spelling.tail, one.scale.dtype))
        return (
            fit_simple(one.shape, one.scale.shape)
            or fit
            or (self._blocks_fit(one, [chosen]) if chosen else None)
            or (fit_halves(one.shape, one.scale.shape) if one.param in _HALVES else None)
        )

    def _bytes_are_exponents(self, one: Pairing, fit: Fit) -> bool:
        known = one.takes_dtype and (one.spelling.is_block_fixed or self._stated.power_of_two is True)
        return known or (fit.block == MX_BLOCK and not one.spelling.divides)

    def _settled(self, one: Pairing, fit: Fit) -> Fit:
        """A line or a column, where the shape of a square matrix leaves it open."""
        layouts = one.spelling.layouts
        if not (fit.is_square and "line" in layouts and "column" in layouts):
            return fit
        seen = self._directions.get(one.spelling.tail, set())
        if len(seen) != 1:
            raise UsageError(
                f"{escape(one.scale.name)} has one number for each line or for each column of a square matrix "
                f"{list(one.shape)}, and nothing says which; say with --as which dialect it is, or put the "
                "configuration beside the checkpoint that says how it was quantised"
            )
        return Fit(next(iter(seen)), is_square=True)

    def _without_fit(self, one: Pairing) -> Misfit:
        blocks = self._given_blocks(one) or one.spelling.blocks
        expected = tuple(dict.fromkeys(grid_shape(one.shape, block) for block in blocks))
        if self._stated.blocks:
            why = (
                f"no blocks of {_size(self._stated.blocks[0])}, which {self._stated.block_from} states, give that shape"
            )
        elif blocks:
            why = f"no blocks of {' or '.join(map(_size, blocks))} give that shape, and no configuration states others"
        else:
            why = "that is neither one number for the tensor nor one for each line"
        return _misfit(one, why + self._others_that_fit(one), expected)

    def _others_that_fit(self, one: Pairing) -> str:
        fits = [fit_blocks(one.shape, one.scale.shape, block) for block in KNOWN_BLOCKS]
        sizes = [
            _size(fit.block) for fit in fits if fit is not None and fit.block is not None and not fit.is_transposed
        ]
        return f"; blocks of {' or '.join(sizes)} would" if sizes else ""

    def _tell(self, one: Pairing, fit: Fit) -> None:
        tail, name = one.spelling.tail.replace("{param}", "weight"), one.scale.name
        if one.scale.dtype == "U8":
            words = "a byte b is the scale 2^(b - 127), and 255 is NaN"
            if _encoding(one, fit) == "E4M3":
                words = "blocks of 16 columns are those of NVFP4"
            self._notes.add(tail, f"U8 taken as {_encoding(one, fit)}: {words}", name)
        if fit.block is not None and one.param in _HALVES and fit == fit_halves(one.shape, one.scale.shape):
            self._notes.add(tail, "one number for each half of the lines taken", name)
        elif fit.block is not None and len(one.shape) == 3 and fit.block == (one.shape[1], 1):
            self._notes.add(tail, "one number a column of each matrix of the stack taken, as its shape says", name)
        elif fit.block is not None and fit.block not in (*self._given_blocks(one), *self._stated.blocks):
            self._notes.add(
                tail, f"no configuration states the block size; {_size(fit.block)} taken, {self._why(one, fit)}", name
            )
        if fit.layout == "line" and fit.is_square:
            self._notes.add(tail, "one number a line (output channel) taken, though the matrix is square", name)
        if fit.layout == "column" and "column" not in one.spelling.layouts:
            message = f"one number a column taken, as its shape says; {self._dialect.title} has one a line"
            self._notes.add(tail, message, name)
        if fit.is_transposed:
            self._notes.add(tail, "taken as stored columns first, as its shape says", name)
        if fit.is_swizzled and (one.spelling.is_swizzled or one.spelling.is_swizzled_otherwise):
            self._notes.add(tail, "taken as stored in the order of tensor cores, in tiles of 128 x 4 numbers", name)

    def _why(self, one: Pairing, fit: Fit) -> str:
        if fit.block in one.spelling.blocks:
            return f"as {self._dialect.title} has it"
        return "the only size in use that goes with the shapes of all"


def _misfit(one: Pairing, why: str, expected: tuple[tuple[int, ...], ...]) -> Misfit:
    return Misfit(one.tensor, one.scale.name, one.scale.shape, expected, f"Not applied: {why}.")


def _encoding(one: Pairing, fit: Fit) -> str:
    """What the numbers of a scale are; bytes without a format are E4M3 in the blocks of NVFP4, else exponents."""
    if one.scale.dtype == "U8" and fit.block == NV_BLOCK:
        return "E4M3"
    return _ENCODINGS.get(one.scale.dtype, one.scale.dtype)


def _chosen_block(ones: Sequence[Pairing]) -> Pair | None:
    """The block size that goes with most of the scales, where that is one; those of the dialect come first."""
    own = ones[0].spelling.blocks
    counts = {
        block: sum(fit_blocks(one.shape, one.scale.shape, block) is not None for one in ones)
        for block in dict.fromkeys((*own, *KNOWN_BLOCKS))
    }
    most = max(counts.values())
    best = [block for block, n in counts.items() if n == most]
    if most == 0 or (best[0] not in own and len(best) > 1):
        return None
    return best[0]


def _size(block: Pair) -> str:
    return f"{block[0]} x {block[1]}"
