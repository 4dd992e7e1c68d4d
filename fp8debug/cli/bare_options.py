"""Options whose value may be left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def with_empty_values(words: Sequence[str], names: Collection[str]) -> list[str]:
    """The same words, with an empty value for each option of `names` that nothing or another option follows.

    A single `-` is a value: standard output.
    """
    end = words.index("--") if "--" in words else len(words)
    return [
        f"{word}=" if word in names and at < end and _is_bare(words, at + 1) else word for at, word in enumerate(words)
    ]


def _is_bare(words: Sequence[str], at: int) -> bool:
    return at >= len(words) or (words[at].startswith("-") and words[at] != "-")
