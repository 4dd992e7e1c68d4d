"""`fp8debug attach`: what its options become, what it says, what it returns. Capture is a stand-in here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fp8debug.cli.exit_codes import ExitCode
from fp8debug.cli.main import main
from fp8debug.config import CaptureOptions

if TYPE_CHECKING:
    from tests.cli.conftest import Place

DATA = Path(__file__).resolve().parent.parent / "data" / "cli"
NOTHING = b"fp8debug: NOTHING WAS RECORDED: "


@pytest.fixture
def script(place: Place) -> Place:
    place.write("train.py", "print('out')\n")
    return place


def test_every_option_reaches_the_hooks(script: Place) -> None:
    given = [
        *("--layers", "mlp", "--layers", r"attn\.", "--exclude", "head", "--tensors", "weight,grad_output,y"),
        *("--every", "7", "--first", "3", "--steps", "0-9,100,200-", "--raw-every", "11"),
        *("--recipe", "current", "--recipe", "delayed:amax_history_len=16,margin=1", "--rolls", "step"),
        *("--out", "o", "--name", "n", "--force", "--list-layers", "--engine", "torch"),
        *("--detail", "gemms,channels", "--accumulation", "exact hopper-fast", "--probe-memory", "5"),
        *("--on-full", "drop", "--max-bytes", "3M"),
        *("--backend", "dispatch", "--attention", "--inference", "--trigger", "NAN,amax>16x", "--flight-memory", "9"),
        *("--resume", "r", "--resume-step", "40", "--plan", "p.toml", "--seed", "4"),
        *("--emulate", "mxfp8", "--keep-bf16", "head", "--keep-bf16", "embed", "--emulate-only", "wgrad,dy"),
    ]
    assert script.attach(*given, "train.py", "--lr", "1").code == 0
    init = script.calls()[0][1]
    assert init["options"] == {
        "layers": ["mlp", r"attn\."],
        "exclude": ["head"],
        "exclude_must_match": True,
        "tensors": ["w", "dy", "y"],
        "every": 7,
        "first": 3,
        "steps": "0-9,100,200-",
        "raw_every": 11,
        "recipes": ["current", "delayed:amax_history_len=16,margin=1"],
        "rolls": "step",
        "engine": "torch",
        "backend": "dispatch",
        "attention": True,
        "inference": True,
        "trigger": ["nan", "amax>16x"],
        "flight_memory": 9,
        "resume": "r",
        "resume_step": 40,
        "detail": ["channels", "gemms"],
        "accumulation": ["exact", "hopper-fast"],
        "probe_memory": 5,
        "on_full": "drop",
        "max_bytes": 3 << 20,
        "plan": "p.toml",
        "seed": 4,
        "emulate": "mxfp8",
        "keep_bf16": ["head", "embed"],
        "emulate_only": ["dy", "wgrad"],
        "out": "o",
        "name": "n",
        "force": True,
        "list_layers": True,
        "quiet": True,
    }
    assert init["command"] == ["fp8debug", "attach", "-q", *given, "train.py", "--lr", "1"]
    assert init["script"] == "train.py"


def test_nothing_given_means_the_defaults(script: Place) -> None:
    script.attach("train.py", quiet=False)
    defaults = dataclasses.asdict(CaptureOptions())
    assert script.calls()[0][1]["options"] == {k: list(v) if isinstance(v, tuple) else v for k, v in defaults.items()}


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (["-m", "package.module"], "module"),
        (["-m", "package"], "package"),
        (["-m", "package.__main__"], "package"),
        (["package"], "package"),
    ],
)
def test_run_is_named_after_the_program(place: Place, command: list[str], title: str) -> None:
    for name in ("__init__", "__main__", "module"):
        place.write(f"package/{name}.py", "")
    place.attach(*command)
    assert place.calls()[0][1]["script"] == title


def test_sources_in_order_of_precedence(script: Place) -> None:
    script.write("pyproject.toml", "[tool.fp8debug]\nevery = 2\nfirst = 2\nraw-every = 2\n")
    script.attach("--every", "4", "train.py", FP8DEBUG_EVERY="3", FP8DEBUG_FIRST="3")
    options = script.calls()[0][1]["options"]
    assert [options[k] for k in ("every", "first", "raw_every", "rolls")] == [4, 3, 2, "microbatch"]


def test_config_file_replaces_pyproject(script: Place) -> None:
    script.write("pyproject.toml", "[tool.fp8debug]\nevery = 2\nfirst = 2\n")
    script.write("capture.toml", "every = 5\n")
    script.attach("--config", "capture.toml", "train.py")
    options = script.calls()[0][1]["options"]
    assert (options["every"], options["first"]) == (5, 0)


def test_hidden_verb_run_is_attach(script: Place) -> None:
    entry = DATA / "entry.py"
    ran = script.python(str(entry), "run", "-q", "train.py", FAKE_LOG=str(script.folder / "calls.jsonl"))
    assert (ran.code, ran.out, ran.err) == (0, b"out\n", b"")
    assert script.calls()[-1] == ["close", "closed", None]


def test_last_two_lines_are_the_run_and_the_next_command(script: Place) -> None:
    variables = {"FAKE_RECORDS": "12345", "FAKE_PROBLEM": "2 layers never ran", "FAKE_SAY": "fp8debug: recording to x"}
    ran = script.attach("train.py", quiet=False, stop_with=None, **variables)
    assert ran.out == b"out\n"
    assert ran.err.decode().splitlines() == [
        "fp8debug: recording to x",
        "fp8debug: warning: 2 layers never ran",
        "fp8debug: recorded 12,345 tensors in 40 steps: runs/my run",
        "fp8debug: next: fp8debug report 'runs/my run'",
    ]


def test_other_ranks_leave_the_last_lines_to_the_first(script: Place) -> None:
    ran = script.attach("train.py", quiet=False, FAKE_RECORDS="5", RANK="3", WORLD_SIZE="4")
    assert b"recorded" not in ran.err
    assert b"fp8debug: rank 3: NOTHING WAS RECORDED: " in script.attach("train.py", quiet=False, RANK="3").err


def test_hooks_that_gave_up_are_the_reason(script: Place) -> None:
    ran = script.attach("train.py", quiet=False, FAKE_SAY="fp8debug: disabled before the first step (OSError: full)")
    assert ran.err.endswith(NOTHING + b"disabled before the first step (OSError: full)\n")


@pytest.mark.parametrize(
    ("source", "records", "why"),
    [
        ("", None, b"no model with nn.Linear layers ran in this process"),
        ("1 / 0", None, b"the script stopped before a model ran"),
        ("import sys; sys.exit(2)", None, b"the script stopped before a model ran"),
        ("", "0", b"the disk is full"),
    ],
)
def test_nothing_recorded_is_loud_and_says_why(place: Place, source: str, records: str | None, why: bytes) -> None:
    place.write("train.py", source)
    if records is None:
        ran = place.attach("train.py", quiet=False)
    else:
        ran = place.attach("train.py", quiet=False, FAKE_RECORDS=records, FAKE_PROBLEM="the disk is full")
    assert NOTHING + why in ran.err.splitlines()[-1]


STOPS = """
from fp8debug.hooks.autoattach import StopBeforeTraining

def forward():
    raise StopBeforeTraining({})

forward()
"""


def test_stop_before_training_ends_without_a_traceback(place: Place) -> None:
    place.write("train.py", STOPS.format("2, '--layers x matches nothing'"))
    ran = place.attach("train.py")
    assert (ran.code, ran.out, ran.err) == (2, b"", b"fp8debug: --layers x matches nothing\n")
    place.write("train.py", STOPS.format("0, 'fp8debug: matched 24 of 25 GEMM layers'"))
    ran = place.attach("train.py", quiet=False)
    assert (ran.code, ran.err.splitlines()[-1]) == (0, b"fp8debug: matched 24 of 25 GEMM layers")
    assert place.calls()[-1][:2] == ["close", "closed"]
    assert place.attach("train.py").err == b""


def test_options_that_cannot_be_met_stop_before_the_script(script: Place) -> None:
    ran = script.attach("train.py", FAKE_FAIL="start:usage")
    assert (ran.code, ran.out, ran.err) == (2, b"", b"fp8debug: the options cannot be met\n")


def test_bug_at_the_start_shows_its_traceback(script: Place) -> None:
    ran = script.attach("train.py", FAKE_FAIL="start:bug")
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err.startswith(b"Traceback") and ran.err.endswith(b"ZeroDivisionError: a bug\n")


def test_bug_at_the_end_is_shown_and_keeps_the_scripts_exit_code(place: Place) -> None:
    place.write("train.py", "import sys; sys.exit(3)")
    ran = place.attach("train.py", FAKE_FAIL="close:bug")
    assert ran.code == 3
    assert ran.err.startswith(b"fp8debug: the run was not closed in order:\n")
    assert ran.err.endswith(b"ZeroDivisionError: a bug\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument"),
        (["--laers", "x", "train.py"], "--layers"),
        (["--every", "x", "train.py"], "--every"),
        (["--every", "0", "train.py"], "fp8debug: --every: got 0; expected a whole number of at least 1\n"),
        (["--layers", "(", "train.py"], "missing ), unterminated subpattern"),
        (["--tensors", "x,grads", "train.py"], "'grads' is none of them; nearest: "),
        (["--recipe", "delayd", "train.py"], "delayed"),
        (["--steps", "9-x", "train.py"], "expected steps and ranges such as 0-9,100,200-"),
        (["--rolls", "never", "train.py"], "--rolls: got 'never'; expected microbatch or step"),
        (["--config", "no.toml", "train.py"], "cannot read no.toml"),
        (["trian.py"], "fp8debug: no such script: trian.py (nearest: train.py); expected a file to run\n"),
    ],
)
def test_bad_option_is_a_usage_error_and_nothing_runs(
    script: Place,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(script.folder)
    assert main(["attach", *arguments]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_closed_stderr_does_not_cost_the_exit_code(place: Place) -> None:
    place.write("train.py", "import os; os.close(2)")
    assert place.attach("train.py", quiet=False, FAKE_RECORDS="1").code == place.python("train.py").code


def test_help_text(repository: Path, place: Place) -> None:
    """Golden: read the difference. Space is not compared, since terminals and typer versions wrap differently."""
    ran = place.python("-m", "fp8debug", "attach", "--help", COLUMNS="100")
    golden = (DATA / "attach_help.txt").read_text(encoding="utf-8")
    assert ran.code == 0
    assert ran.out.decode().split() == golden.split()
