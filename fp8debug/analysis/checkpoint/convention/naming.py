"""Names of tensors taken apart by the spellings of a dialect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PARAM = "{param}"
_COMMON = ("_scale", "_scales", "scale", "scales")
"""Tails that parameters of ordinary models have too: logit_scale, layer_scale, q_norm.scale."""


class Key(NamedTuple):
    """What codes and their scales have in common."""

    layer: str
    param: str

    @property
    def module(self) -> str:
        """The layer of a weight; the parameter itself where it has another name."""
        return self.layer if self.param == "weight" else self.plain_name

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

    def param(self, last: str) -> str | None:
        """The parameter that the last part of a name speaks of; None: it has another tail."""
        if not self._has_param:
            return "weight" if last == self.text else None
        if len(last) > self.n_literal and last.startswith(self._before) and last.endswith(self._after):
            return last[len(self._before) : len(last) - len(self._after)]
        return None

    def is_telling(self, key: Key) -> bool:
        """Whether a name with it is that of a scale even where no codes stand beside it."""
        return self._before + self._after not in _COMMON or (self._has_param and key.param == "weight")


class Tails:
    """Several of them, to be found in many names: the last parts of names are few."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._tails = sorted(map(Tail, dict.fromkeys(texts)), key=lambda tail: -tail.n_literal)
        self._seen: dict[str, list[tuple[Tail, str]]] = {}

    def matches(self, name: str) -> list[tuple[Tail, Key]]:
        """Those that a name has, the one that says most first, and what the name speaks of then."""
        layer, _, last = name.rpartition(".")
        found = self._seen.get(last)
        if found is None:
            params = ((tail, tail.param(last)) for tail in self._tails)
            found = self._seen[last] = [(tail, param) for tail, param in params if param is not None]
        return [(tail, Key(layer, param)) for tail, param in found] if found else []
