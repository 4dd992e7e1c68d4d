"""What a dialect is: names of tensors, what their scales do, and how a checkpoint of it is recognised. Data alone."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fp8debug.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class ScaleSpelling:
    """One kind of scale tensor, as a dialect writes it."""

    suffix: str
    """What stands in the place of the weight's suffix: `weight_scale_inv`; for a kind of attention, after the layer
    that holds it: `k_proj.k_scale`, `attn.k_scale`."""
    kind: str
    """One of records.SCALE_KINDS."""
    divides: bool
    """Whether codes are divided by it."""
    dtypes: tuple[str, ...]
    """dtypes it is stored in; U8 here means E8M0."""
    layouts: tuple[str, ...]
    """Layouts it may have, of records.LAYOUTS."""
    block: tuple[int, int] | None = None
    """Block that the dialect fixes, lines x columns (0 lines: one); None: the configuration says it."""
    is_required: bool = True
    """Whether codes without it are incomplete."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One convention of writing quantised weights."""

    name: str
    """What `--as` takes."""
    title: str
    """For people."""
    writers: str
    """Who writes it."""
    signs: tuple[Mapping[str, Any], ...]
    """What it is recognised by, see dialects/README.md: a configuration's value, a suffix, a text of the header."""
    weights: tuple[str, ...]
    """Suffixes of the tensors that hold codes."""
    formats: Mapping[str, str]
    """Element format by stored dtype: F8_E4M3 -> E4M3; U8 -> E2M1 where nibbles are packed."""
    scales: tuple[ScaleSpelling, ...]
    block_paths: tuple[str, ...] = ()
    """Where configurations state the block size, `config.json:quantization_config.weight_block_size`; first wins."""
    excluded_paths: tuple[str, ...] = ()
    """Where they list what stays in high precision."""
    target_paths: tuple[str, ...] = ()
    """Where they list what is quantised."""
    power_of_two_paths: Mapping[str, Any] = None  # type: ignore[assignment]
    """Where they promise powers of two, and the value that means so."""
    companions: tuple[str, ...] = ()
    """Suffixes of further tensors that are part of it and hold nothing to check."""
    recipes: tuple[str, ...] = ()
    """Names of scaling recipes that are written in it."""


@cache
def dialects() -> Mapping[str, Dialect]:
    """All that are known, by name."""
    folder = resources.files("fp8debug.analysis.checkpoint.dialects")
    texts = {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".toml")}
    return {one.name: one for one in (_parse(tomllib.loads(texts[name])) for name in sorted(texts))}


def dialect_named(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        UsageError: there is none.
    """
    known = dialects()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise UsageError(f"--as {name}: no such dialect; {hint}expected one of {', '.join(known)}")
    return known[name]


def _parse(given: dict[str, Any]) -> Dialect:
    raise NotImplementedError
