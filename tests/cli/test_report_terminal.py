"""`fp8debug report` on a terminal: no wider than that is, and in colours unless they are not wanted."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fp8debug.cli.render.commands import fitted


@pytest.mark.parametrize(
    ("name", "width", "environment", "has_colours"),
    [("gpt-healthy", 80, {}, True), ("smollm2", 60, {"NO_COLOR": "1"}, False)],
)
def test_width_and_colours(
    pseudo_terminal: ModuleType,
    repository: Path,
    name: str,
    width: int,
    environment: dict[str, str],
    has_colours: bool,
) -> None:
    terminal = pseudo_terminal.Terminal(
        [sys.executable, "-m", "fp8debug", "report", f"sample_dumps/{name}"],
        repository,
        width=width,
        height=200,
        environment=environment,
    )
    assert terminal.end() == 0
    text = terminal.screen.text
    assert text.startswith(f"RUN sample_dumps/{name}\n") and text.endswith(" --json")
    assert not terminal.screen.has_wrapped
    assert terminal.screen.has_colours is has_colours
    assert ("\x1b" in terminal.out) is has_colours


def test_a_command_that_is_too_long_means_the_same_in_a_shell() -> None:
    command = "fp8debug verify --plan plan.toml train.py --steps 200 --lr 0.5"
    lines = fitted(command, 30)
    assert lines == ["fp8debug verify --plan \\", "    plan.toml train.py \\", "    --steps 200 --lr 0.5"]
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == command.split()
    query = "fp8debug sql run \"\n  select one, two, three, four, five\n  where layer = 'a b c d e f g h i j'\""
    assert fitted(query, 30) == [
        'fp8debug sql run "',
        "  select one, two, three,",
        "    four, five",
        "  where layer = 'a b c d e f g h i j'\"",
    ]
    assert fitted("fp8debug rules", 30) == ["fp8debug rules"]
