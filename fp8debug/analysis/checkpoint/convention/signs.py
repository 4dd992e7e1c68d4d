"""Which dialects a checkpoint shows signs of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fp8debug.analysis.checkpoint.convention.configuration import found
from fp8debug.analysis.checkpoint.convention.naming import PARAM, Tail
from fp8debug.analysis.checkpoint.dialects import LEVELS, Dialect, Sign
from fp8debug.analysis.checkpoint.store import Store


class Signs:
    """What a checkpoint shows, once for all dialects."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lasts = Counter((name.rpartition(".")[2], one.dtype) for name, one in store.tensors.items())

    def seen(self, dialect: Dialect) -> list[tuple[int, str]]:
        """Level (place in LEVELS) and words of each sign of a dialect."""
        return [(LEVELS.index(sign.level), words) for sign in dialect.signs for words in self._words(sign)]

    def _words(self, sign: Sign) -> Iterator[str]:
        if sign.config:
            yield from (
                f"{where} is {str(value)[:60]}"
                for where, value in found(self._store.configs, sign.config)
                if (value is not None if not sign.equals else str(value).lower() in sign.equals)
            )
        elif sign.metadata:
            if sign.contains in self._store.metadata.get(sign.metadata, "\0"):
                yield f"the header of the file has {sign.metadata}"
        else:
            tail = Tail(sign.tail)
            n = sum(
                count
                for (last, dtype), count in self._lasts.items()
                if tail.param(last) is not None and (not sign.dtypes or dtype in sign.dtypes)
            )
            if n:
                yield f"{n:,} {_words_of(sign, n)}"


def _words_of(sign: Sign, n: int) -> str:
    if sign.tail == PARAM:
        return f"{'tensor is' if n == 1 else 'tensors are'} stored as codes, with no scale beside them"
    tail = sign.tail.removeprefix(PARAM).replace(PARAM, "weight")
    return f"{'name ends' if n == 1 else 'names end'} in {tail}"
