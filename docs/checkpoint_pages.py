"""The page of what checkpoints are checked for, from checks.toml."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.hit import CheckText, check_texts

_HEAD = """# What a checkpoint is checked for

{note}
Each finding of [`fp8debug checkpoint`](checkpoint.md) is of one of these checks. error: values come out wrong, or not
at all; the command exits with 3. warning: harmful as a rule. watch: unusual, effect unknown. note: good to know. A
single place may be judged milder or harder than its check; the finding says how.
"""


def pages(note: str) -> dict[str, str]:
    """File name below docs/ -> its whole text."""
    return {"checkpoint-checks.md": "\n".join([_HEAD.format(note=note), *_entries()])}


def _entries() -> Iterator[str]:
    for check in check_texts().values():
        yield _entry(check)


def _entry(check: CheckText) -> str:
    return f"## {check.name}\n\n**{check.title}** ({check.severity}). {check.looks_for}\n\nWhat to do: {check.advice}\n"
