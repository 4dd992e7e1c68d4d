"""The two exceptions a user may meet, and words for their messages.

Anything else that escapes is a bug of ours and shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class Fp8DebugError(Exception):
    """A mistake or a circumstance that the user can act on.

    The message says what happened, what was got, what was expected, and what to do.
    `exit_code` is what the command line returns: 1 could not do it, 2 usage.
    """

    exit_code = 1


class UsageError(Fp8DebugError):
    """The request itself is wrong: an unknown option value, a regex that does not compile."""

    exit_code = 2


def nearest(word: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return up to `limit` of `known` that look most like `word`, best first."""
    return difflib.get_close_matches(word, list(known), n=limit, cutoff=0.3)


def escape(text: str) -> str:
    """Make every character visible: control characters, ANSI escapes and bidi marks become `\\x1b`-like text.

    Names come from somebody else's files; printed as they are they could move the cursor or fake a line.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def escape_lines(text: str) -> str:
    """`escape` for a text whose lines are to stay lines; a tab is blanks."""
    return "\n".join(map(escape, text.expandtabs(4).split("\n")))


def some(names: Sequence[str]) -> str:
    """`a, b, c and 2 more`: enough to see what is meant."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
