"""Options that may stand before a script or directly after it, the script's own words behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def options_first(words: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Our options, the script, the script's words.

    Where none of ours stands before the script, those that directly follow it are ours, up to the first word that is
    not, or to `--`. Where one does, all that follows the script is its own, but for one `--` at the front.

    Args:
        words: as they were typed after the verb.
        takes_value: our options by name, with whether a value follows.
    """
    before, rest = _leading(words, takes_value)
    if not rest or rest[0].startswith("-"):
        return list(words)
    script, rest = rest[0], rest[1:]
    after: list[str] = []
    if not before:
        after, rest = _leading(rest, takes_value)
    return [*before, *after, script, *(rest[1:] if rest[:1] == ["--"] else rest)]


def _leading(words: Sequence[str], takes_value: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """The options at the front, with their values, and what follows them."""
    at = 0
    while at < len(words):
        name, sign, _ = words[at].partition("=")
        if name not in takes_value:
            break
        at += 2 if takes_value[name] and not sign else 1
    return list(words[:at]), list(words[at:])
