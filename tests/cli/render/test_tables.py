"""Plain text: what is escaped, how it is aligned and wrapped."""

from __future__ import annotations

import pytest

from fp8debug.cli.render.tables import chunks, columns, display_width, escape, named_columns, pad, wrap


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("blocks.0.fc1 [red]", "blocks.0.fc1 [red]"),
        ("é漢", "é漢"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\r\nb\tc\x00\x7f", r"a\r\nb\tc\x00\x7f"),
        ("\u202ecod\u200b\u2028", r"\u202ecod\u200b\u2028"),
        ("\x9b31m", r"\x9b31m"),
        ("\udc80", r"\udc80"),
    ],
)
def test_escape(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_width_counts_terminal_columns() -> None:
    assert [display_width(text) for text in ("abc", "漢字", "e\u0301")] == [3, 4, 1]
    assert pad("漢", 4) == "漢  " and pad("7", 3, right=True) == "  7"


def test_columns_align_and_leave_no_blanks_behind() -> None:
    assert columns([("a", "1", ""), ("漢字", "22", "x")], right=(False, True)) == ["a      1", "漢字  22  x"]
    assert columns([]) == []


def test_long_names_stand_above_their_row() -> None:
    rows = [("a", "1", "x"), ("a-long-name", "22", "y")]
    assert named_columns(rows, 17, right=(False, True)) == ["a   1  x", "a-long-name", "   22  y"]
    assert named_columns(rows, 18) == columns(rows)
    assert named_columns([], 80) == []


def test_wrapping_never_breaks_a_word() -> None:
    assert wrap("a long-name " + "x" * 30, 20, hanging="  ") == ["  a long-name", "    " + "x" * 30]
    assert wrap("meaning of it", 20, indent="column    ") == ["column    meaning of", "          it"]
    assert wrap("", 20) == []


def test_chunks() -> None:
    assert chunks("abcde", 2) == ["ab", "cd", "e"] and chunks("", 2) == [""]
