"""A few hundred damaged inputs of every kind: an answer or a clear error. benchmarks/fuzz.py has the ten thousand."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fp8debug.cli.main import main
from fp8debug.control import read_control
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.reading import known_fields, parse_json, read_text
from fp8debug.rundir import LayerInfo, Manifest, RankInfo, RunDir

COUNTS = {
    "Parquet parts": 12,
    "manifests and control files": 16,
    "configuration": 60,
    "own rules": 6,
    "plans": 60,
    "loss curves": 20,
    "SQL": 16,
}


@pytest.fixture(scope="module")
def samples(fuzz: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fuzz.make_samples(tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("kind", COUNTS)
def test_an_answer_or_a_clear_error(fuzz: ModuleType, samples: Any, kind: str) -> None:
    words = []
    for number in range(COUNTS[kind]):
        outcome = fuzz.run_input(kind, number, 7, samples)
        assert not outcome.is_fault, f"--kind {kind!r} --seed 7 --only {number}: {outcome.word}: {outcome.detail}"
        words.append(outcome.word)
    assert len(words) < 10 or set(words) == {"answered", "refused"}, (
        "damage that is never noticed, or always, tests little"
    )


def test_the_kinds_are_those_of_the_benchmark(fuzz: ModuleType) -> None:
    assert set(COUNTS) == set(fuzz.KINDS)
    assert sum(share for _, share in fuzz.KINDS.values()) == pytest.approx(1)


def test_faults_are_told(fuzz: ModuleType, samples: Any, tmp_path: Path) -> None:
    """What the harness calls a fault."""
    assert fuzz.run_command(lambda: 1 / 0).word == "traceback"
    assert fuzz.run_command(lambda: print("\x1b[31m")).word == "control characters"
    assert fuzz.run_command(["sql", str(samples.place), "select 1"]).word == "answered"
    refused = fuzz.run_command(["sql", str(tmp_path), "select 1"])
    assert refused.word == "refused" and "has no run.json" in refused.detail


# What the ten thousand have found -------------------------------------------------------------------------------------


@pytest.fixture
def run(samples: Any, tmp_path: Path) -> Path:
    """A copy of the run that may be damaged."""
    return Path(shutil.copytree(samples.place, tmp_path / "run"))


def test_rows_that_are_damaged_behind_a_whole_footer(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = next((run / "tensors/rank=0").glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[4:400] = bytes(396)
    part.write_bytes(content)
    assert main(["report", str(run)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"fp8debug: {part} is damaged: its rows cannot be read (")
    assert "move it out of the run directory to go on without it" in err


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = next((run / "steps/rank=0").glob("*.parquet"))
    for path in (part, run / "rank=0.json"):
        path.unlink()
        os.mkfifo(path)
    assert main(["sql", str(run), "select count(*) as n from steps", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "n\n0\n"
    os.mkfifo(run / "pipe")
    assert main(["sql", str(run), "-f", str(run / "pipe")]) == 2
    assert main(["rules", "--config", str(run / "pipe")]) == 0, "an empty configuration"
    assert main(["compare", str(run / "pipe"), str(run / "pipe")]) == 2
    assert main(["plan", "--check", str(run / "pipe"), str(run)]) == 2
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    assert main(["sql", str(run), "from steps"]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("world_size", 10**9, "world_size is 1000000000, expected 1 to 262,144"),
        ("world_size", "2", "world_size is '2', expected int"),
        ("world_size", True, "world_size is True, expected int"),
        ("command", "train.py", r"command is 'train.py', expected list\[str\]"),
        ("command", [1], r"command is \[1\], expected list\[str\]"),
        ("name", {"a": 1}, "name is {'a': 1}, expected"),
        ("name", "\ud800", "name is .*ud800', expected"),
        ("options", {"detail": 3}, "detail is 3, expected"),
        ("segments", [{"started_at": 5}], "started_at is 5, expected"),
        ("layers", [3], "got 3, expected an object"),
    ],
)
def test_a_manifest_is_held_against_its_types(run: Path, key: str, value: object, message: str) -> None:
    import json

    raw = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(raw | {key: value}))
    with pytest.raises(Fp8DebugError, match=rf"run.json is not a run manifest: {message}"):
        RunDir(run).read_manifest()


def test_types_are_told_apart() -> None:
    assert known_fields(RankInfo, {"rank": 1, "more": 2}) == {"rank": 1}
    assert known_fields(Manifest, {"layers": [LayerInfo], "git_commit": None}) == {
        "layers": [LayerInfo],
        "git_commit": None,
    }
    wrongs: list[dict[str, object]] = [{"rank": 2**63}, {"rank": 1.0}, {"host": None}, {"control": []}]
    for wrong in wrongs:
        with pytest.raises(TypeError, match="expected"):
            known_fields(RankInfo, wrong)


def test_nesting_without_end_is_no_document(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 100_000)
    with pytest.raises(OSError):
        read_text("a\0b")
    control = tmp_path / "control.json"
    for text in ("[" * 100_000, '{"serial": 1, "written_unix_s": NaN}', '{"serial": 1, "written_unix_s": 1e300}'):
        control.write_text(text)
        with pytest.raises(UsageError):
            read_control(control)


def test_numbers_without_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text('[{"step": 1, "loss": 1' + "0" * 400 + '}, {"step": 2, "loss": 2}]')
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) in (0, 1)
    (tmp_path / "a.json").write_text('[{"step": 1' + "0" * 30 + ', "loss": 1}]')
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 2
    assert "expected whole steps" in capsys.readouterr().err
    (tmp_path / "fp8debug.toml").write_text('layers = ["a{99999999999}"]')
    assert main(["rules", "--config", str(tmp_path / "fp8debug.toml")]) == 0, "rules need no layers"
    numbers = "a:\n  enabled: true\n  layers: {layer_numbers: [0-99999999999]}\n"
    (tmp_path / "plan.yaml").write_text(numbers)
    (tmp_path / "names").write_text("layers.0.fc\n")
    assert main(["plan", "--check", str(tmp_path / "plan.yaml"), str(tmp_path / "names")]) == 0
