"""Regular expressions of strangers, matched at the beginning of names in time that grows with their length alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_REPEATS = re.compile(r"[*+{]")
_GROWING = 2
"""Repetitions from which Python's own way may try more than the square of the length of a name."""
_MOST_LOOKING, _LONGEST_LOOKED_AT = 3, 256
"""Repetitions of expressions that RE2 does not have, which look ahead or back, and characters of names for them."""


class Regex:
    """One expression; RE2, which never goes back, matches those that repeat more than once.

    Args:
        text: as `re` has it.
        may_be_endless: whether Python's own way may take exponential time.
        is_quick: whether that is known to be quick.

    Raises:
        re.error, RecursionError, OverflowError: it is none.

    Attributes:
        is_endless: whether it is one that RE2 does not have and that may take for ever otherwise.
    """

    def __init__(self, text: str, *, may_be_endless: bool = False, is_quick: bool = False) -> None:
        compiled = re.compile(text)
        n_repeats = 0 if is_quick else len(_REPEATS.findall(text))
        self._longest = None if is_quick else _LONGEST_LOOKED_AT
        self._anchored = rf"\A(?:{text})"
        self._is_linear = (may_be_endless or n_repeats >= _GROWING) and _re2_has(self._anchored)
        self.is_endless = not self._is_linear and (may_be_endless or n_repeats > _MOST_LOOKING)
        self._python = None if self._is_linear or self.is_endless else compiled
        self._ends: dict[str, int | None] = {}

    def prepare(self, names: Iterable[str]) -> None:
        """Match many names at once: a thousand times faster than one by one."""
        if self._is_linear:
            new = [name for name in dict.fromkeys(names) if name not in self._ends]
            self._ends |= zip(new, self._linear_ends(new), strict=True)

    def end(self, name: str) -> int | None:
        """Where a match from the beginning of a name ends; None: there is none."""
        if self._is_linear:
            self.prepare([name])
            return self._ends[name]
        is_short = self._longest is None or len(name) <= self._longest
        found = self._python.match(name) if self._python is not None and is_short else None
        return None if found is None else found.end()

    def _linear_ends(self, names: list[str]) -> list[int | None]:
        import pyarrow.compute as pc

        array = _strings(names)
        matches = pc.match_substring_regex(array, pattern=self._anchored).to_pylist()
        rests = pc.replace_substring_regex(array, pattern=self._anchored, replacement="", max_replacements=1)
        return [
            len(name) - len(rest) if matched else None
            for name, matched, rest in zip(names, matches, rests.to_pylist(), strict=True)
        ]


def _strings(texts: list[str]) -> pa.StringArray:
    """As `pa.array`, which imports pandas to ask whether it is given some: a second."""
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def _re2_has(text: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(_strings([""]), pattern=text)
    except pa.ArrowInvalid:
        return False
    return True
