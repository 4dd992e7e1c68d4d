"""Where settings come from, which source wins, and what is said about a bad one."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest

from fp8debug.config import CaptureOptions
from fp8debug.errors import UsageError
from fp8debug.settings import SETTINGS, load_options


def load(
    folder: Path,
    given: dict[str, object] | None = None,
    config_file: str | None = None,
    environment: dict[str, str] | None = None,
) -> CaptureOptions:
    return load_options(given or {}, config_file=config_file, environment=environment or {}, folder=folder)


def test_every_field_is_a_setting() -> None:
    assert set(SETTINGS) == {field.name for field in fields(CaptureOptions) if field.compare}


def test_nothing_given(tmp_path: Path) -> None:
    assert load(tmp_path, {"layers": None, "exclude": [], "every": None}) == CaptureOptions()


ALL_FILE = r"""
[tool.fp8debug]
layers = ['mlp', 'attn\.']
exclude = 'head'
tensors = ["x", "grad_output"]
every = 7
first = 3
steps = "0-9"
raw-every = 11
recipe = "delayed:margin=1"
rolls = "step"
engine = "torch"
out = "o"
name = "n"
quiet = true
"""
ALL_ENVIRONMENT = {
    "FP8DEBUG_LAYERS": r"a|b\.c, d",
    "FP8DEBUG_EXCLUDE": "e",
    "FP8DEBUG_TENSORS": "w,y",
    "FP8DEBUG_EVERY": "8",
    "FP8DEBUG_FIRST": "4",
    "FP8DEBUG_STEPS": "5",
    "FP8DEBUG_RAW_EVERY": "12",
    "FP8DEBUG_RECIPE": "current delayed",
    "FP8DEBUG_ROLLS": "microbatch",
    "FP8DEBUG_ENGINE": "numba",
    "FP8DEBUG_RUN_DIR": "r",
    "FP8DEBUG_NAME": "m",
    "FP8DEBUG_FORCE": "1",
    "FP8DEBUG_LIST_LAYERS": "yes",
    "FP8DEBUG_QUIET": "off",
}
FROM_FILE = CaptureOptions(
    layers=("mlp", r"attn\."),
    exclude=("head",),
    tensors=("x", "dy"),
    every=7,
    first=3,
    steps="0-9",
    raw_every=11,
    recipes=("delayed:margin=1",),
    rolls="step",
    engine="torch",
    out="o",
    name="n",
    quiet=True,
)
FROM_ENVIRONMENT = CaptureOptions(
    layers=(r"a|b\.c, d",),
    exclude=("e",),
    tensors=("w", "y"),
    every=8,
    first=4,
    steps="5",
    raw_every=12,
    recipes=("current", "delayed"),
    rolls="microbatch",
    engine="numba",
    out="r",
    name="m",
    force=True,
    list_layers=True,
    quiet=False,
)


def test_file_sets_everything(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(ALL_FILE)
    assert load(tmp_path) == FROM_FILE


def test_environment_beats_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(ALL_FILE)
    assert load(tmp_path, environment=ALL_ENVIRONMENT) == FROM_ENVIRONMENT


def test_command_line_beats_the_environment(tmp_path: Path) -> None:
    options = load(tmp_path, {"every": 9, "layers": ["z"], "quiet": True}, environment=ALL_ENVIRONMENT)
    assert (options.every, options.layers, options.quiet, options.first) == (9, ("z",), True, 4)


def test_empty_variable_is_not_given(tmp_path: Path) -> None:
    environment = {"FP8DEBUG_EVERY": "", "FP8DEBUG_CONFIG": "", "FP8DEBUG_NO_SUCH": "", "OTHER": "x"}
    assert load(tmp_path, environment=environment) == CaptureOptions()


def test_launchers_run_directory_beats_the_variable_of_the_option(tmp_path: Path) -> None:
    assert load(tmp_path, environment={"FP8DEBUG_OUT": "a"}).out == "a"
    assert load(tmp_path, environment={"FP8DEBUG_RUN_DIR": "b", "FP8DEBUG_OUT": "a"}).out == "b"
    assert load(tmp_path, {"out": "c"}, environment={"FP8DEBUG_RUN_DIR": "b"}).out == "c"


def test_nearest_pyproject_with_the_table_is_read(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.fp8debug]\nevery = 2\n")
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.fp8debug]\nevery = 3\n")
    (deep / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert load(deep).every == 3


@pytest.mark.parametrize("text", ["every = 6", "[tool.fp8debug]\nevery = 6"])
def test_named_file_holds_the_options_bare_or_in_the_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(ALL_FILE)
    (tmp_path / "c.toml").write_text(text)
    expected = CaptureOptions(every=6)
    assert load(tmp_path, config_file=str(tmp_path / "c.toml")) == expected
    assert load(tmp_path, environment={"FP8DEBUG_CONFIG": str(tmp_path / "c.toml")}) == expected


def test_key_may_be_written_with_an_underscore(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("raw_every = 6")
    assert load(tmp_path, config_file=str(tmp_path / "c.toml")).raw_every == 6


BAD_FILES = {
    "unknown key": ("evry = 3", r"c\.toml: unknown setting 'evry'; did you mean every"),
    "key of one start": ("force = true", r"c\.toml: unknown setting 'force'"),
    "far from all": ("zzz = 3", r"expected one of layers, exclude, "),
    "bad value": ("every = -3", r"c\.toml: every: got -3; expected a whole number of at least 1"),
    "bad type": ("layers = 3", r"c\.toml: layers: got 3; expected a text or a list of texts"),
    "bad recipe": ("recipe = 'delayed:len=3'", r"c\.toml: recipe: .*amax_history_len"),
    "no TOML": ("every = = 3", r"c\.toml is not valid TOML: .*line 1"),
    "tool is no table": ("tool = 3", r"unknown setting 'tool'"),
    "our table is none": ("[tool]\nfp8debug = 3", r"tool\.fp8debug is 3; expected a table"),
}


@pytest.mark.parametrize("case", BAD_FILES.values(), ids=BAD_FILES)
def test_bad_file_names_itself_and_the_key(tmp_path: Path, case: tuple[str, str]) -> None:
    text, message = case
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        load(tmp_path, config_file=str(tmp_path / "c.toml"))


def test_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*no\.toml: No such file"):
        load(tmp_path, config_file=str(tmp_path / "no.toml"))
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not valid TOML"):
        load(tmp_path, config_file=str(tmp_path / "c.toml"))


def test_pyproject_names_its_table(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fp8debug]\nevry = 3\n")
    with pytest.raises(UsageError, match=r"pyproject\.toml \[tool\.fp8debug\]: unknown setting 'evry'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FP8DEBUG_EVREY", "3", "environment: unknown setting 'FP8DEBUG_EVREY'; did you mean FP8DEBUG_EVERY"),
        ("FP8DEBUG_RECIPES", "current", "did you mean FP8DEBUG_RECIPE"),
        ("FP8DEBUG_EVERY", "x", "FP8DEBUG_EVERY: got 'x'; expected a whole number of at least 1"),
        ("FP8DEBUG_TENSORS", "x,grads", "FP8DEBUG_TENSORS: .*nearest: .*gradient"),
    ],
)
def test_bad_variable_is_named(tmp_path: Path, variable: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, environment={variable: value})


def test_bad_value_of_the_command_line_is_named_as_the_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--raw-every: got -1; expected a whole number of at least 0"):
        load(tmp_path, {"raw_every": -1})


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FP8DEBUG_EVERY", "13")
    monkeypatch.chdir(tmp_path)
    assert load_options({}).every == 13
