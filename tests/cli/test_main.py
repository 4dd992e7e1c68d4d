"""The shell around the verbs: help, version, errors, exit codes."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

import fp8debug
from fp8debug.cli import main as shell
from fp8debug.cli.exit_codes import ExitCode
from fp8debug.cli.main import VERBS, main
from fp8debug.errors import Fp8DebugError, UsageError


def test_help_lists_every_verb_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    for verb in VERBS:
        assert (f"  {verb.name} " in out) is not verb.hidden
        assert (verb.summary in " ".join(out.split())) is not verb.hidden
    assert err == ""


@pytest.mark.parametrize("verb", [v for v in VERBS if not v.hidden], ids=lambda v: v.name)
def test_line_in_the_help_is_the_verbs_own(verb: shell.Verb) -> None:
    function = getattr(importlib.import_module(f"fp8debug.cli.{verb.module}"), verb.module)
    assert (inspect.getdoc(function) or "").splitlines()[0] == verb.summary


@pytest.mark.parametrize("arguments", [["checkpoint", "quantize", "--help"], ["checkpoint quantize", "--help"]])
def test_a_verb_may_have_two_words(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.DONE
    assert capsys.readouterr().out.startswith("Usage: fp8debug checkpoint quantize [OPTIONS]")


def test_the_second_word_of_a_verb_is_a_path_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoint", "./quantize"]) == ExitCode.FAILED
    assert "quantize" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"fp8debug {fp8debug.__version__}\n"


def test_no_command_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "attach" in err


@pytest.mark.parametrize("arguments", [["atach"], ["--verison"], ["attach", "--no-such-option"]])
def test_mistyped_command_or_option(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert arguments[-1] in err


@pytest.mark.parametrize(("error", "code"), [(Fp8DebugError("no such run"), 1), (UsageError("bad value"), 2)])
def test_errors_for_users_are_one_line(
    error: Fp8DebugError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verb() -> None:
        raise error

    monkeypatch.setattr(shell, "_load", lambda _: verb)
    assert main(["runs"]) == code
    assert capsys.readouterr() == ("", f"fp8debug: {error}\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_a_verb_as_an_exit_does(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned = []

    def verb() -> None:
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append(number)

    monkeypatch.setattr(shell, "_load", lambda _: verb)
    assert main(["runs"]) == code
    assert cleaned == [number] and "Traceback" not in capsys.readouterr().err


def test_a_query_that_a_signal_ends_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    con = duckdb.connect(config={"threads": 1})

    def verb() -> None:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        con.execute("select count(*) from range(2_000_000) a, range(100) b where a.range % 3 = b.range % 7")

    monkeypatch.setattr(shell, "_load", lambda _: verb)
    assert main(["runs"]) == 130


def test_bugs_are_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def verb() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(shell, "_load", lambda _: verb)
    with pytest.raises(ZeroDivisionError):
        main(["runs"])


def test_a_path_that_the_system_refuses_is_no_bug(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / ("a" * 300)
    assert main(["sql", str(shared / "healthy"), "select 1", "-o", str(long)]) == 1
    assert capsys.readouterr().err.startswith(f"fp8debug: cannot use {long}: File name too long; give another path")


@pytest.mark.parametrize(
    ("stdout", "code", "message"),
    [
        (">/dev/full", 1, "fp8debug: cannot write what was asked for: No space left on device; make room"),
        (">&-", 0, ""),
    ],
)
def test_a_stdout_that_takes_nothing(stdout: str, code: int, message: str, tmp_path: Path) -> None:
    command = f'"$0" -m fp8debug rules {stdout}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, cwd=tmp_path, timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    assert (done.returncode, done.stderr.partition(", or")[0].strip()) == (code, message)


def test_python_m_is_the_console_script(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("fp8debug")
    ran = [
        subprocess.run([*command, "--help"], capture_output=True, cwd=tmp_path, check=True).stdout
        for command in ([sys.executable, "-m", "fp8debug"], [str(script)])
    ]
    assert ran[0] == ran[1]
