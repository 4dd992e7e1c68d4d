"""`fp8debug show`: what a person reads of one tensor, what a program gets, what is refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fp8debug import __version__
from fp8debug.analysis import open_run
from fp8debug.analysis.diagnosis import RuleBook, load_rules
from fp8debug.analysis.operand import Operand, Standing, look
from fp8debug.analysis.scope import Scope
from fp8debug.cli.main import main
from fp8debug.cli.render.show import render_layer, render_operand, show_json
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.rule_choice import RuleChoice

Golden = Callable[[str, str], None]

SAMPLES = Path(__file__).resolve().parents[2] / "sample_dumps"
BAD = "\x1b[2Jit's \u202e<script>$(id)`\"\n" + "long" * 100


class Show:
    """`fp8debug show` in this process, where the samples are."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0, verb: str = "show") -> str:
        """What it prints on stdout; `err` has the rest. Its exit code must be `code`."""
        self._capsys.readouterr()
        got = main([verb, *arguments])
        out, self.err = self._capsys.readouterr()
        assert got == code, self.err
        return out


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.chdir(SAMPLES.parent)
    return Show(capsys)


@pytest.fixture(scope="module")
def operands() -> tuple[Operand, ...]:
    """x and dy of a layer of gpt-outlier that was planted."""
    with open_run(SAMPLES / "gpt-outlier", scope=Scope(layer=r"blocks\.1\.fc1"), threads=1) as run:
        return look(run, "blocks.1.fc1", ["x", "dy"], rules=RuleBook((load_rules()["underflow"],)))


def body(text: str) -> list[str]:
    """Lines that are not meant to be pasted."""
    return text.partition("\nNEXT\n")[0].splitlines()


def test_one_tensor(operands: tuple[Operand, ...], golden: Golden) -> None:
    text = render_operand(operands[0], Looks(), run_path="sample_dumps/gpt-outlier")
    golden("sample_dumps/gpt-outlier.show.txt", text)
    assert max(map(len, body(text))) <= 80
    plain = render_operand(operands[0], Looks(ascii_only=True), run_path="sample_dumps/gpt-outlier")
    assert plain.isascii()
    coloured = render_operand(operands[0], Looks(colour=True), run_path="sample_dumps/gpt-outlier")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == text


def test_the_documented_output_is_real() -> None:
    page = (SAMPLES.parent / "docs" / "show.md").read_text(encoding="utf-8")
    real = (SAMPLES.parent / "tests" / "golden" / "sample_dumps" / "gpt-outlier.show.txt").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(?:\$ [^\n]*\n)?(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(shown) == 4
    assert all(text in real for text in shown)


def test_all_tensors_of_a_layer_in_short(operands: tuple[Operand, ...], golden: Golden) -> None:
    text = render_layer(operands, Looks(), run_path="sample_dumps/gpt-outlier")
    golden("sample_dumps/gpt-outlier.show_layer.txt", text)
    assert max(map(len, body(text))) <= 80


def test_for_a_program(operands: tuple[Operand, ...]) -> None:
    document = json.loads(show_json(operands, "run"), parse_constant=_refuse)
    assert (document["show_version"], document["fp8debug_version"]) == (1, __version__)
    assert [each["tensor"] for each in document["operands"]] == ["x", "dy"]
    x = document["operands"][0]
    assert (x["standing"]["level"], x["step"], x["recipe"]) == ("candidate", 195, "delayed")
    spread = x["distribution"]
    assert spread["n_zero"] + sum(spread["before"]) == spread["n_zero_after"] + sum(spread["after"]) == spread["n"]


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_another_step_and_a_recipe_without_one_scale(operands: tuple[Operand, ...]) -> None:
    spread = operands[0].distribution
    assert spread is not None
    known = replace(spread, recipe=None, fmt=None, scale=None, after=())
    shown = replace(operands[0], asked_step=190, recipe="mxfp8", distribution=known)
    text = " ".join(render_operand(shown, Looks(), run_path="run").split())
    assert "DISTRIBUTION at step 195, the nearest to 190 of which values were counted" in text
    assert "What mxfp8 leaves is not drawn" in text
    assert " after " not in text.partition("RANGES")[0].partition("DISTRIBUTION")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["gpt-outlier", "fc1"], 2, "matches 4 recorded layers: blocks.0.fc1"),
        (["gpt-outlier", "blocks.1.fcl"], 2, "nearest names: blocks.1.fc"),
        (["gpt-outlier", "blocks.1.fc1", "dx"], 2, "dx of blocks.1.fc1 was not recorded"),
        (["nowhere", "blocks.1.fc1"], 1, "no such run"),
    ],
)
def test_what_is_refused(show: Show, arguments: list[str], code: int, told: str) -> None:
    run, *others = arguments
    assert show(f"sample_dumps/{run}", *others, code=code) == ""
    assert told in show.err


def test_hostile_names_and_little_to_tell(
    synthetic_run: ModuleType, show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer and a recipe that a terminal would obey, a tensor that was never sampled, one without elements."""
    written = synthetic_run.SyntheticRun(tmp_path / "run", layers=[synthetic_run.layer_info(BAD)])
    evil = synthetic_run.ForcedScale(0.5, recipe="\x1b[31mevil,\u202e" + "very" * 30)
    values = synthetic_run.as_bfloat16(np.append(np.linspace(-3, 3, 600, dtype=np.float32), [np.nan, np.inf]))
    for step in range(3):
        written.add(BAD, "x", values, step=step, scales=(evil,))
        written.add(BAD, "w", values[:600], step=step, sampled=False)
        written.add(BAD, "dy", values[:0], step=step)
    path = str(written.write())
    rules = RuleBook((load_rules()["nonfinite"],))  # all of them would take as long as all the rest
    monkeypatch.setattr(RuleChoice, "rules", lambda _: rules)
    with open_run(path, threads=1) as run:
        found = look(run, BAD, ["w", "dy"], rules=rules)
    closely = show(path, BAD, "activation")
    few = [render_operand(each, Looks(), run_path=path) for each in found]
    for text in (closely, *few, render_layer(found, Looks(), run_path=path)):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
        assert max(map(len, body(text))) <= 80
    assert "6 elements NaN or infinite, first at step 0." in closely
    assert "Its values were not counted in this run" in few[0]
    assert "It has no elements." in few[1]
    bad = replace(
        found[0],
        facts=replace(found[0].facts, first_nonfinite_step=2),
        standing=Standing("fine", (), ("current",), None, told=()),
    )
    assert "w  NOT FINITE from step 2; its finite values are fine under current" in render_layer(
        [bad], Looks(), run_path="r"
    )
    query = re.search(r'fp8debug sql (.*?"\n.*?order by octave nulls first")', closely, re.DOTALL)
    assert query is not None
    words = shlex.split(re.sub(r"\\([$`])", r"\1", query[1]))  # shlex leaves these escapes to the shell
    rows = show(*words, "--format", "csv", verb="sql").splitlines()
    assert sum(int(row.split(",")[1]) for row in rows[1:]) == 600
    assert show(path, "nothing", code=2) == ""
    assert "\x1b" not in show.err
