"""Names and reasons in the syntax of other people's files: they come from a model and may hold anything."""

from __future__ import annotations

from collections.abc import Iterable

from fp8debug.plans import one_line


def comments(lines: Iterable[str], indent: str = "") -> list[str]:
    """Each line as a comment, for YAML, TOML and Python alike."""
    return [f"{indent}# {one_line(line)}".rstrip() for line in lines]


def yaml_string(text: str) -> str:
    """A quoted YAML scalar: single quotes, where nothing but the quote is special, else double ones with escapes."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(map(_yaml_character, text)) + '"'


def _yaml_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
