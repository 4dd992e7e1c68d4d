"""The tutorial's commands print what the page shows: each `sh` block that is followed by a `text` block is run."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path

import pytest

from fp8debug.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^```sh\n((?:(?!```).*\n)+)```\n\n```text\n((?:(?!```).*\n)+)```$", re.MULTILINE)


def test_commands_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty folder beside which `sample_dumps` lies, in order: later commands read what earlier ones wrote."""
    (tmp_path / "sample_dumps").symlink_to(ROOT / "sample_dumps")
    monkeypatch.chdir(tmp_path)
    examples = SHOWN.findall(PAGE)
    assert len(examples) >= 7
    for command, shown in examples:
        program, *arguments = shlex.split(command)
        assert program == "fp8debug"
        assert main(arguments) == 0
        captured = capsys.readouterr()
        printed = captured.out + captured.err
        assert re.fullmatch(_as_pattern(shown), printed), _difference(command, shown, printed)


def test_every_verb_of_the_page_exists(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    verbs = re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.MULTILINE)
    told = set(re.findall(r"^(?:\$ )?fp8debug (\w+)", PAGE, re.MULTILINE))
    assert told <= set(verbs) and {"attach", "report", "show", "sql", "whatif", "plan", "verify", "compare"} <= told


def _as_pattern(shown: str) -> str:
    """A line `...` stands for any lines."""
    return "".join(r"(?:.*\n)*?" if line == "...\n" else re.escape(line) for line in shown.splitlines(keepends=True))


def _difference(command: str, shown: str, printed: str) -> str:
    return command + "".join(difflib.unified_diff(shown.splitlines(True), printed.splitlines(True), "shown", "printed"))
