"""Whose a word is: ours, or the script's."""

from __future__ import annotations

import pytest

from fp8debug.cli.script_first import options_first

OPTIONS = {"--plan": True, "--seed": True, "--json": False, "-q": False}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("train.py --plan p --steps 5 --seed 3", "--plan p train.py --steps 5 --seed 3"),
        ("train.py --plan=p -q --json -- --seed 3", "--plan=p -q --json train.py --seed 3"),
        ("--plan p train.py --seed 3 --json", "--plan p train.py --seed 3 --json"),
        ("--plan p train.py -- --seed 3 --", "--plan p train.py --seed 3 --"),
        ("--plan p -- torchrun train.py --seed 3", "--plan p -- torchrun train.py --seed 3"),
        ("train.py data --plan p", "train.py data --plan p"),
        ("train.py --plan", "--plan train.py"),
        ("--nosuch train.py", "--nosuch train.py"),
        ("--plan", "--plan"),
        ("", ""),
    ],
)
def test_options_first(typed: str, expected: str) -> None:
    assert options_first(typed.split(), OPTIONS) == expected.split()
