"""Names of tensors taken apart by the spellings of a dialect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PARAM = "{param}"


class Key(NamedTuple):
    """What codes and their scales have in common."""

    layer: str
    param: str

    @property
    def module(self) -> str:
        """The layer of a weight; the parameter itself where it has another name."""
        return self.layer if self.param == "weight" else ".".join(filter(None, self))

    @property
    def plain_name(self) -> str:
        """Name that the parameter has where it is not quantised."""
        return ".".join(filter(None, self))


class Tail:
    """The end of a name as a dialect spells it, see `dialects.dialect`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._has_param = PARAM in text
        self._before, _, self._after = text.partition(PARAM)

    @property
    def n_literal(self) -> int:
        """Characters that are given: of two tails that fit a name, the one with more of them says more."""
        return len(self._before) + len(self._after)

    @property
    def is_telling(self) -> bool:
        """Whether a name with it is a scale even where nothing stands beside it: `_scale` alone is in many names."""
        return self._after not in ("_scale", "_scales", "")

    def key(self, name: str) -> Key | None:
        """Layer and parameter that a name speaks of; None: it has another tail."""
        layer, _, last = name.rpartition(".")
        if not self._has_param:
            return Key(layer, "weight") if last == self.text else None
        if len(last) > self.n_literal and last.startswith(self._before) and last.endswith(self._after):
            return Key(layer, last[len(self._before) : len(last) - len(self._after)])
        return None


def tails(texts: Iterable[str]) -> list[Tail]:
    """The tails, each once, those that say most first."""
    return sorted(map(Tail, dict.fromkeys(texts)), key=lambda tail: -tail.n_literal)
