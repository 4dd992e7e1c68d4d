"""Colours only where they are wanted; nothing is lost on a stream with few characters."""

from __future__ import annotations

import io
import sys

import pytest

from fp8debug.cli.render.stream import Looks, looks_of, write_stdout


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal_of_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_terminal_has_colours_and_its_own_width() -> None:
    assert looks_of(Terminal()) == Looks(width=100, colour=True, ascii_only=False)


def test_a_pipe_is_plain_and_80_columns_wide() -> None:
    assert looks_of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) == Looks(width=80)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert not looks_of(Terminal()).colour


def test_blocks_are_not_forced_on_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal("ascii")
    assert looks_of(stream).ascii_only
    monkeypatch.setattr(sys, "stdout", stream)
    write_stdout("fc.é ▁\n")
    stream.flush()
    assert stream.buffer.getvalue() == rb"fc.\xe9 \u2581" + b"\n"  # type: ignore[attr-defined]


def test_styles_vanish_without_colour() -> None:
    plain, coloured = Looks(), Looks(colour=True)
    for style in ("bold", "dim", "red", "yellow", "green"):
        assert getattr(plain, style)("x") == "x"
        assert getattr(coloured, style)("x").startswith("\x1b[") and getattr(coloured, style)("") == ""
