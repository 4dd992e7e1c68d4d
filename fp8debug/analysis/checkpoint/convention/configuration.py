"""What the configurations beside a checkpoint state, found by the paths that a dialect gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fp8debug.analysis.checkpoint.dialects import Dialect
from fp8debug.analysis.checkpoint.dialects.dialect import Pair

Configs = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Stated:
    """What configurations say about how weights are quantised."""

    blocks: tuple[Pair, ...] = ()
    """Lines x columns, as often as they are stated: several schemes may be in one checkpoint."""
    block_from: str = ""
    """Where the first is stated."""
    excluded: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    power_of_two: bool | None = None


def stated_in(configs: Configs, dialect: Dialect) -> Stated:
    """What is stated where a dialect has it."""
    blocks = [(where, pair) for path in dialect.block_paths for where, pair in _blocks(configs, path)]
    promised = [str(value).lower() in one.equals for one in dialect.promises for _, value in found(configs, one.config)]
    return Stated(
        tuple(dict.fromkeys(pair for _, pair in blocks)),
        blocks[0][0] if blocks else "",
        tuple(_texts(configs, dialect.excluded_paths)),
        tuple(_texts(configs, dialect.target_paths)),
        any(promised) if promised else None,
    )


def found(configs: Configs, path: str) -> Iterator[tuple[str, Any]]:
    """Values at a path, with the path of each.

    Args:
        configs: by file name.
        path: `config.json:quantization_config.config_groups.*.weights.group_size`; a star is every key there is.
    """
    file, _, keys = path.partition(":")
    if file in configs:
        yield from _below(configs[file], keys.split("."), f"{file}: ")


def _below(value: Any, keys: list[str], where: str) -> Iterator[tuple[str, Any]]:
    if not keys:
        yield where.rstrip("."), value
    elif isinstance(value, Mapping):
        for key in value if keys[0] == "*" else [keys[0]]:
            if key in value:
                yield from _below(value[key], keys[1:], f"{where}{key}.")


def _blocks(configs: Configs, path: str) -> Iterator[tuple[str, Pair]]:
    for where, value in found(configs, path):
        if (pair := as_block(value)) is not None:
            yield where, pair


def as_block(value: Any) -> Pair | None:
    """Lines x columns of a block, as configurations write it: 32, [128, 128], "128x128"; None: it is none."""
    if isinstance(value, str):
        parts: list[Any] = [int(part) for part in value.split("x") if part.isascii() and part.isdigit()]
    else:
        parts = list(value) if isinstance(value, list | tuple) else [1, value]
    if len(parts) == 2 and all(isinstance(part, int) and not isinstance(part, bool) and part > 0 for part in parts):
        return parts[0], parts[1]
    return None


def _texts(configs: Configs, paths: tuple[str, ...]) -> Iterator[str]:
    """Texts of lists, each once."""
    listed = (value for path in paths for _, value in found(configs, path))
    yield from dict.fromkeys(text for value in listed if isinstance(value, list) for text in value if _is_text(text))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def mentions(configs: Configs, word: str) -> str:
    """Where what configurations say about quantisation has a text with a word in it; empty: nowhere."""
    left = [(where, value) for path in _SECTIONS for where, value in found(configs, path)]
    while left:
        where, value = left.pop()
        if isinstance(value, Mapping):
            left += ((f"{where}.{key}", one) for key, one in value.items())
        elif isinstance(value, list):
            left += ((where, one) for one in value)
        elif isinstance(value, str) and word in value.lower():
            return where
    return ""


_SECTIONS = (
    "config.json:quantization_config",
    "config.json:text_config.quantization_config",
    "hf_quant_config.json:quantization",
)
