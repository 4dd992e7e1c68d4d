"""What a checkpoint holds, what its bytes are taken to mean, and what is found: records alone.

The way of a checkpoint: files -> `Store` (names, dtypes, shapes, bytes) -> `Convention` (which tensors are quantised,
which numbers are their scales, how these are applied) -> facts (measured once, in one pass) -> findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

SCALE_KINDS = ("weight", "tensor", "input", "q", "k", "v", "output", "reciprocal")
"""weight: of the codes | tensor: second level of weight, one for the tensor | input: of the layer's activations |
q, k, v: of attention and its cache | output: of the layer's result | reciprocal: 1 / another scale, kept beside it."""
LAYOUTS = ("tensor", "line", "column", "block")
"""One number for everything, for a line (an output channel, N), for a column (K), for a block of both."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as a file declares it."""

    name: str
    dtype: str
    """In the spelling of safetensors: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 F8_E4M3FNUZ F8_E5M2FNUZ F8_E8M0 F4 U8 I8 ..."""
    shape: tuple[int, ...]
    file: str
    """Relative to the checkpoint."""

    @property
    def n(self) -> int:
        """Elements as declared; of packed codes, bytes."""
        return prod(self.shape)

    @property
    def lines(self) -> int:
        """Product of all axes but the last; 1 for vectors and scalars."""
        return prod(self.shape[:-1])

    @property
    def length(self) -> int:
        """Elements of a line, as declared."""
        return self.shape[-1] if self.shape else 1


@dataclass(frozen=True, slots=True)
class Scale:
    """A tensor of scales and how its numbers are applied."""

    name: str
    kind: str
    """One of SCALE_KINDS."""
    encoding: str
    """What one number is: F32 | BF16 | F16 | F64 | E8M0 | E4M3 | ...; E8M0 also where the file says U8."""
    shape: tuple[int, ...]
    divides: bool
    """Whether a code's value is divided by it; else multiplied."""
    layout: str
    """One of LAYOUTS."""
    block: tuple[int, int] | None = None
    """Lines x columns of the tensor that share a number, where the layout is block; the last ones may be smaller."""
    is_transposed: bool = False
    """Whether the grid is stored columns first."""
    module: str = ""
    """What it belongs to: `model.layers.0.self_attn.k_proj`."""
    is_swizzled: bool = False
    """Whether a grid is stored in the order of tensor cores: tiles of 128 x 4 numbers, padded to whole tiles."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """A quantised tensor: value = decode(code) x each of `scales` (or / it, where that divides)."""

    name: str
    module: str
    """Name of the layer: without the ending that says weight."""
    fmt: str
    """Element format: E4M3 | E5M2 | E4M3FNUZ | E5M2FNUZ | E2M1 | ..."""
    shape: tuple[int, ...]
    """Of the values: (..., N, K), packing undone."""
    scales: tuple[Scale, ...]
    """weight and tensor scales; empty: none was found."""
    is_packed: bool = False
    """Two 4-bit codes in a byte, the first in the low half."""
    is_high_first: bool = False
    """Whether the first of two packed codes is in the high half after all."""

    @property
    def n(self) -> int:
        """Values."""
        return prod(self.shape)

    @property
    def lines(self) -> int:
        """Product of all axes but the last."""
        return prod(self.shape[:-1])

    @property
    def length(self) -> int:
        """Values of a line."""
        return self.shape[-1] if self.shape else 1

    @property
    def grid_scale(self) -> Scale | None:
        """The scale of the codes, before any second level."""
        return next((scale for scale in self.scales if scale.kind == "weight"), None)


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that was not written down anywhere, or was chosen among several readings."""

    subject: str
    """A tensor, a suffix, or the checkpoint."""
    message: str
    """A sentence: what is taken to be so, and why."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A scale that stands beside codes and cannot be applied to them: it is in no `Quantised.scales`."""

    tensor: str
    """The codes."""
    scale: str
    shape: tuple[int, ...]
    """Of the scale, as stored."""
    expected: tuple[tuple[int, ...], ...]
    """Shapes that would fit; empty: it is not the shape that does not fit."""
    message: str
    """A sentence: what does not fit."""


@dataclass(frozen=True, slots=True)
class Convention:
    """How the tensors of a checkpoint are read."""

    dialect: str | None
    """Name of the dialect; None: nothing in it is quantised."""
    title: str
    """Its name for people."""
    why: str
    """What it was recognised by."""
    quantised: tuple[Quantised, ...]
    """All that are, those without any scale included."""
    scales: tuple[Scale, ...] = ()
    """Scales of anything but stored codes: input, q, k, v, output, reciprocal."""
    orphan_scales: tuple[str, ...] = ()
    """Tensors named like scales of codes, whose codes are not there or are no codes."""
    plain: tuple[str, ...] = ()
    """Everything else that is numbers: weights in high precision, norms, biases."""
    unknown: tuple[str, ...] = ()
    """Names that neither the dialect nor a plain model explains."""
    excluded: tuple[str, ...] = ()
    """Patterns of layers that the configuration says stay in high precision."""
    targets: tuple[str, ...] = ()
    """Patterns of layers that it says are quantised; empty: it says nothing."""
    block: tuple[int, int] | None = None
    """Block size that the configuration states."""
    block_from: str = ""
    """Where it states it."""
    power_of_two: bool | None = None
    """Whether the configuration promises scales that are powers of two; None: it says nothing."""
    assumptions: tuple[Assumption, ...] = ()
    misfits: tuple[Misfit, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckPlace:
    """One tensor, or one group of them, where a check hit."""

    tensor: str
    """Its name in the file; a module, or several names with commas, where the check is about more."""
    message: str
    """A sentence with the numbers of this place."""
    factor: float | None = None
    """By how much its values come out too large (2: twice what they should be), where that is known."""
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    """The same numbers for programs; units in the names."""
    brief: str = ""
    """What stands beside the tensor in a list, where the message is long: `4.09 times too large`."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One kind of fault, wherever it shows."""

    check: str
    """Name in checks.toml."""
    severity: str
    """error | warning | watch | note, as in the rules of runs."""
    title: str
    """What is wrong, and in how many places of how many: `Codes without a scale (2 of 24)`."""
    advice: str
    places: tuple[CheckPlace, ...]
    """Worst first."""

    @property
    def message(self) -> str:
        """The title with the sentence of the worst place."""
        return f"{self.title}: {self.places[0].message}"
