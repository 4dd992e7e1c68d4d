"""The line that says what takes so long: where it is drawn, what it says, and that nothing is left of it."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fp8debug.cli import progress as module
from fp8debug.cli.progress import progress

SCRIPT = """
import sys, time
from fp8debug.cli import progress as module
module.AFTER_S = 0.1
with module.progress("reading the run") as stage:
    time.sleep(0.5)
    stage("asking 30 rules")
    time.sleep(0.5)
    stage.tell("said meanwhile")
    time.sleep(0.3)
assert "rich" not in sys.modules
print("the report")
"""
QUERY = """
import duckdb
from fp8debug.cli import progress as module
module.AFTER_S = 0.1
with duckdb.connect(config={"threads": 1}) as con, module.progress("reading the run") as stage:
    stage.reading(con)
    con.execute("create table t as select range as i from range(2_000_000)")
    con.execute("select sum(sqrt(a.i + b.i)) from t as a, range(40) as b(i)").fetchall()
"""


Start = Callable[..., Any]


@pytest.fixture
def start(pseudo_terminal: ModuleType, tmp_path: Path) -> Start:
    """Run a script in a terminal."""

    def started(script: str, **options: Any) -> Any:
        (tmp_path / "script.py").write_text(script, encoding="utf-8")
        return pseudo_terminal.Terminal([sys.executable, "script.py"], tmp_path, **options)

    return started


def test_words_and_seconds_then_nothing(start: Start) -> None:
    terminal = start(SCRIPT)
    assert re.fullmatch(r"\S reading the run \d s", terminal.wait_for("reading the run"))
    assert re.fullmatch(r"\S asking 30 rules \d s", terminal.wait_for("asking 30 rules"))
    terminal.wait_for(lambda text: re.fullmatch(r"fp8debug: said meanwhile\n\S asking 30 rules \d s", text) is not None)
    assert terminal.end() == 0
    assert terminal.screen.text == "fp8debug: said meanwhile\nthe report"


def test_duckdb_says_how_far_a_query_is(start: Start) -> None:
    terminal = start(QUERY)
    terminal.wait_for(lambda text: re.fullmatch(r"\S reading the run \d+ % \d s", text) is not None)
    assert terminal.end() == 0
    assert terminal.screen.text == ""


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminals_that_want_none(start: Start, environment: dict[str, str]) -> None:
    terminal = start(re.sub(r"sleep.*", "sleep(0.15)", SCRIPT), environment=environment)
    assert terminal.end() == 0
    assert terminal.out == "fp8debug: said meanwhile\r\nthe report\r\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with progress("reading the run") as stage:
        stage("and more")
    assert stream.getvalue() == ""
    assert isinstance(stage, module._Line)


def test_a_pipe_sees_nothing_and_an_error_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), progress("reading the run") as stage:
        stage.tell("hello")
        raise ZeroDivisionError
    assert capsys.readouterr() == ("", "fp8debug: hello\n")
