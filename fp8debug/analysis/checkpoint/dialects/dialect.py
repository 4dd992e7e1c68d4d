"""What a dialect is: names of tensors, what their scales do, and how a checkpoint of it is recognised. Data alone.

A name is read as `<layer>.<tail>`; a tail is written in a dialect as a text that may hold `{param}`, the name of the
parameter: of `model.layers.0.mlp.up_proj.weight_scale_inv`, with the tail `{param}_scale_inv`, the layer is
`model.layers.0.mlp.up_proj` and the parameter `weight`. Codes and scales belong together when layer and parameter are
the same; tails without `{param}` speak of `weight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Pair = tuple[int, int]

LEVELS = ("names", "metadata", "config")
"""What a sign is worth, least first: names are shared by many, headers' texts by few, a configuration states it."""


@dataclass(frozen=True, slots=True)
class CodeSpelling:
    """How a dialect writes the tensors that hold codes."""

    tail: str
    formats: Mapping[str, str]
    """Element format by stored dtype: F8_E4M3 -> E4M3; U8 -> E2M1 where two codes are in a byte."""
    is_high_first: bool = False
    """Whether the first of two codes in a byte is in its high half."""
    has_blocks_apart: bool = False
    """Whether the last two axes are blocks and the bytes of a block: (..., K / 32, 16)."""


@dataclass(frozen=True, slots=True)
class ScaleSpelling:
    """One kind of scale tensor, as a dialect writes it."""

    tail: str
    kind: str
    """One of records.SCALE_KINDS."""
    dtypes: tuple[str, ...]
    """dtypes it is stored in."""
    layouts: tuple[str, ...]
    """Layouts it may have, of records.LAYOUTS."""
    divides: bool = False
    """Whether codes are divided by it."""
    blocks: tuple[Pair, ...] = ()
    """Lines x columns of a block, where the dialect knows it; likelier ones first."""
    is_block_fixed: bool = False
    """Whether the block is part of the format, whatever a configuration says."""
    is_swizzled: bool = False
    """Whether a grid is stored in the order of tensor cores."""
    is_swizzled_otherwise: bool = False
    """Whether a grid whose shape is not that of its blocks is."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Something that a dialect is recognised by: one of the four."""

    level: str
    """One of LEVELS."""
    config: str = ""
    """Path of a value, see `convention.configuration.found`."""
    equals: tuple[str, ...] = ()
    """What the value may be, lower case; empty: that it is there is enough."""
    metadata: str = ""
    """Key of a text of the header."""
    contains: str = ""
    """What that text contains."""
    tail: str = ""
    """Tail of a tensor's name."""
    dtypes: tuple[str, ...] = ()
    """dtypes that the tensor may have; empty: any."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Where a configuration says that scales are powers of two."""

    config: str
    equals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One convention of writing quantised weights."""

    name: str
    """What `--as` takes."""
    title: str
    """For people."""
    writers: str
    """Who writes it."""
    about: str
    """What is particular about it: a sentence or two."""
    rank: int
    """Of two dialects that read a checkpoint alike, that of the lower rank is named."""
    signs: tuple[Sign, ...]
    codes: tuple[CodeSpelling, ...]
    scales: tuple[ScaleSpelling, ...]
    includes: tuple[str, ...] = ()
    """Dialects whose scales it has too; they are among `scales`."""
    is_generic: bool = False
    """Whether it stands for names alone: a dialect that somebody writes goes before it."""
    block_paths: tuple[str, ...] = ()
    """Where configurations state the block size; first wins."""
    excluded_paths: tuple[str, ...] = ()
    """Where they list what stays in high precision."""
    target_paths: tuple[str, ...] = ()
    """Where they list what is quantised."""
    promises: tuple[Promise, ...] = ()
    reads_header: bool = False
    """Whether the header of a file says how each parameter is stored, see `convention.header`."""
    companions: tuple[str, ...] = ()
    """Tails of further tensors that are part of it and hold nothing to check."""

    @property
    def code_dtypes(self) -> frozenset[str]:
        """dtypes that its codes are stored in."""
        return frozenset(dtype for spelling in self.codes for dtype in spelling.formats)


def dialect_from(given: Mapping[str, Any], shared: Mapping[str, tuple[ScaleSpelling, ...]]) -> Dialect:
    """The dialect that a file describes.

    Args:
        given: the file, parsed.
        shared: spellings that several dialects have, by the name that their `includes` give.

    Raises:
        KeyError, TypeError: the file lacks something, or has what no dialect has.
    """
    rest = {key: given[key] for key in given if key not in _TABLES}
    own = tuple(ScaleSpelling(**_frozen(one)) for one in given.get("scales", ()))
    return Dialect(
        signs=tuple(Sign(**_frozen(one)) for one in given.get("signs", ())),
        codes=tuple(CodeSpelling(**_frozen(one)) for one in given.get("codes", ())),
        scales=own + tuple(one for name in given.get("includes", ()) for one in shared[name]),
        promises=tuple(Promise(**_frozen(one)) for one in given.get("promises", ())),
        **_frozen(rest),
    )


_TABLES = {"signs", "codes", "scales", "promises"}


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    """Lists made tuples, those within lists too."""
    return {key: _as_tuple(value) for key, value in table.items()}


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
