"""From a scale that stands beside codes to how its numbers are applied to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fp8debug.analysis.checkpoint.convention.configuration import Stated
from fp8debug.analysis.checkpoint.convention.fitting import (
    KNOWN_BLOCKS,
    Fit,
    fit_blocks,
    fit_simple,
    grid_shape,
    spaced,
)
from fp8debug.analysis.checkpoint.dialects import Dialect, ScaleSpelling
from fp8debug.analysis.checkpoint.dialects.dialect import Pair
from fp8debug.analysis.checkpoint.records import Assumption, Misfit, Scale, Stored

MX_BLOCK: Pair = (1, 32)
_ENCODINGS = {"F8_E4M3": "E4M3", "F8_E5M2": "E5M2", "F8_E8M0": "E8M0", "U8": "E8M0"}


@dataclass(slots=True)
class Notes:
    """What was assumed, each with the tensors it was assumed for."""

    names: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, subject: str, message: str, name: str) -> None:
        """Remember that something was assumed for a tensor."""
        self.names.setdefault((subject, message), []).append(name)

    def assumptions(self) -> tuple[Assumption, ...]:
        """One for each thing that was assumed."""
        return tuple(Assumption(subject, f"{message} {_counted(on)}") for (subject, message), on in self.names.items())


def _counted(names: Sequence[str]) -> str:
    return f"(of {names[0]})" if len(names) == 1 else f"({len(names):,} tensors, the first is {names[0]})"


@dataclass(frozen=True, slots=True)
class Pairing:
    """Codes, and a scale that stands beside them."""

    tensor: str
    module: str
    shape: tuple[int, ...]
    """Of the values."""
    is_packed: bool
    scale: Stored
    spelling: ScaleSpelling
    takes_dtype: bool
    """Whether the dialect writes such scales in this dtype."""


class Applier:
    """Finds for every pairing how the scale is applied, the same way for all of one spelling."""

    def __init__(self, dialect: Dialect, stated: Stated, notes: Notes) -> None:
        self._dialect, self._stated, self._notes = dialect, stated, notes
        self._chosen: dict[tuple[str, str], Pair | None] = {}

    def choose_blocks(self, pairings: Iterable[Pairing]) -> None:
        """Settle block sizes that nobody states: one for all scales of a spelling and dtype."""
        open_ones: dict[tuple[str, str], list[Pairing]] = {}
        for one in pairings:
            if self._needs_choice(one):
                open_ones.setdefault((one.spelling.tail, one.scale.dtype), []).append(one)
        for (tail, dtype), ones in open_ones.items():
            self._chosen[tail, dtype] = _chosen_block(ones)

    def scale_of(self, one: Pairing) -> Scale | Misfit:
        """The scale and how it is applied, or why it cannot be."""
        if (fit := self._fit(one)) is None:
            return self._misfit(one)
        if one.scale.dtype == "U8" and not self._bytes_are_exponents(one, fit):
            return Misfit(
                one.tensor, one.scale.name, one.scale.shape, (),
                f"{one.scale.name} is stored as U8, and nothing says what its bytes mean: scales of 32 columns would "
                "be E8M0, and so would those of a configuration that says ue8m0.",
            )  # fmt: skip
        self._tell(one, fit)
        grid = grid_shape(one.shape, fit.block) if fit.block is not None else ()
        shape = grid if one.scale.shape == spaced(grid) else one.scale.shape
        return Scale(
            one.scale.name, one.spelling.kind, _ENCODINGS.get(one.scale.dtype, one.scale.dtype), shape,
            one.spelling.divides, fit.layout, fit.block, fit.is_transposed, one.module,
        )  # fmt: skip

    def _needs_choice(self, one: Pairing) -> bool:
        return (
            "block" in one.spelling.layouts
            and not self._stated.blocks
            and fit_simple(one.shape, one.scale.shape) is None
            and self._first_fit(one, self._given_blocks(one)) is None
        )

    def _given_blocks(self, one: Pairing) -> tuple[Pair, ...]:
        """Block sizes that need no choice, those stated first."""
        fixed = one.spelling.blocks if one.spelling.is_block_fixed else ()
        mx = (MX_BLOCK,) if one.scale.dtype in ("U8", "F8_E8M0") and not one.spelling.divides else ()
        return tuple(dict.fromkeys((*self._stated.blocks, *fixed, *mx)))

    def _first_fit(self, one: Pairing, blocks: Iterable[Pair]) -> Fit | None:
        fits = (fit_blocks(one.shape, one.scale.shape, block) for block in blocks)
        return next((fit for fit in sorted(filter(None, fits), key=lambda fit: fit.is_transposed)), None)

    def _fit(self, one: Pairing) -> Fit | None:
        """Blocks that are stated first: a small matrix may have one of them alone."""
        takes_blocks = "block" in one.spelling.layouts or one.scale.dtype in ("U8", "F8_E8M0")
        given = self._given_blocks(one) if takes_blocks and one.spelling.kind == "weight" else ()
        fit = self._first_fit(one, given)
        if fit is not None and not fit.is_transposed:
            return fit
        simple = fit_simple(one.shape, one.scale.shape)
        if simple is not None:
            return simple
        chosen = self._chosen.get((one.spelling.tail, one.scale.dtype))
        return fit or (fit_blocks(one.shape, one.scale.shape, chosen) if chosen else None)

    def _bytes_are_exponents(self, one: Pairing, fit: Fit) -> bool:
        known = one.takes_dtype and (one.spelling.is_block_fixed or self._stated.power_of_two is True)
        return known or (fit.block == MX_BLOCK and not one.spelling.divides)

    def _misfit(self, one: Pairing) -> Misfit:
        blocks = self._given_blocks(one) or one.spelling.blocks
        expected = tuple(dict.fromkeys(grid_shape(one.shape, block) for block in blocks))
        wanted = " or ".join(
            f"{list(shape)} for blocks of {_size(b)}" for shape, b in zip(expected, blocks, strict=False)
        )
        stated = f"; {self._stated.block_from} says {_size(self._stated.blocks[0])}" if self._stated.blocks else ""
        return Misfit(
            one.tensor, one.scale.name, one.scale.shape, expected,
            f"{one.scale.name} has the shape {list(one.scale.shape)}, which goes with no way of scaling "
            f"{list(one.shape)} values{f': expected {wanted}' if wanted else ''}{stated}.",
        )  # fmt: skip

    def _tell(self, one: Pairing, fit: Fit) -> None:
        tail = one.spelling.tail.replace("{param}", "weight")
        name = one.scale.name
        if one.scale.dtype == "U8":
            self._notes.add(tail, "U8 taken as E8M0: a byte b is the scale 2^(b - 127), 255 is NaN", name)
        if (
            fit.block is not None
            and fit.block not in (*self._stated.blocks, MX_BLOCK)
            and not one.spelling.is_block_fixed
        ):
            why = (
                f"as {self._dialect.title} writes them" if fit.block in one.spelling.blocks
                else "the only size in use that goes with the shapes of all"
            )  # fmt: skip
            self._notes.add(tail, f"no configuration states the block size; {_size(fit.block)} taken, {why}", name)
        if fit.layout == "line" and fit.is_square:
            self._notes.add(tail, "one number a line (output channel) taken, though the matrix is square", name)
        if fit.layout == "column" and one.spelling.kind == "weight" and "column" not in one.spelling.layouts:
            self._notes.add(
                tail, f"one number a column, which the shape says; {self._dialect.title} writes one a line", name
            )
        if fit.is_transposed:
            self._notes.add(tail, "stored columns first: its shape is that of the transposed grid", name)


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
