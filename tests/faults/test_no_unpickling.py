"""Nothing that is read can run code: no source of ours unpickles, and a pickle in place of a file is refused."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fp8debug.cli.main import main

FORBIDDEN = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "pandas"}
UNSAFE_CALLS = {"unsafe_load", "full_load", "load_all", "unsafe_load_all", "read_pickle", "unpickle", "Unpickler"}


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What in a module could unpickle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if FORBIDDEN & set(alias.name.split(".")))
        elif isinstance(node, ast.ImportFrom):
            words = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
            yield from (FORBIDDEN | UNSAFE_CALLS) & words
        elif isinstance(node, ast.Attribute) and node.attr in FORBIDDEN - {"pandas"} | UNSAFE_CALLS:
            yield node.attr
        elif isinstance(node, ast.Call):
            yield from unsafe_call(node)


def unsafe_call(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    given = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if called.endswith(("import_module", "__import__")) and node.args and isinstance(node.args[0], ast.Constant):
        yield from FORBIDDEN & set(str(node.args[0].value).split("."))
    if called == "torch.load" and given.get("weights_only") != "True":
        yield called
    if given.get("allow_pickle", "False") != "False" or (called == "np.load" and "allow_pickle" not in given):
        yield called
    if called == "yaml.load" and given.get("Loader") != "yaml.SafeLoader":
        yield called


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import a, dill as b",
        "from joblib import load",
        "from ray import cloudpickle",
        "import importlib\nimportlib.import_module('shelve')",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=x)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "pd.read_pickle(path)",
        "ray.cloudpickle.loads(x)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert list(unsafe(ast.parse(source)))


def test_the_search_leaves_alone() -> None:
    source = "torch.load(p, weights_only=True)\nnp.load(p, allow_pickle=False)\nyaml.safe_load(t)\nimport json, numpy"
    assert not list(unsafe(ast.parse(source)))


def test_no_source_of_ours_unpickles(repository: Path) -> None:
    files = sorted((repository / "fp8debug").rglob("*.py"))
    assert len(files) > 250
    found = {file.name: names for file in files if (names := list(unsafe(ast.parse(file.read_text(encoding="utf-8")))))}
    # Ray carries a function to the cluster that the user names; what is told to it is only how.
    assert found == {"on_ray.py": ["cloudpickle", "cloudpickle"]}
    assert "cloudpickle.load" not in (repository / "fp8debug/analysis/engine/on_ray.py").read_text(encoding="utf-8")


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.marker), "w")


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture
def bomb(marker: Path) -> bytes:
    content = pickle.dumps(Bomb(marker))
    pickle.loads(content).close()
    assert marker.exists(), "it works"
    marker.unlink()
    return content


def test_a_pickle_in_place_of_any_file_is_refused(
    bomb: bytes, marker: Path, tmp_path: Path, synthetic_run: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    written = synthetic_run.SyntheticRun(tmp_path / "run", layers=[synthetic_run.layer_info("fc")])
    for step in range(2):
        written.add_row("steps", step=step, loss=1.0)
        written.write()
    run = tmp_path / "run"
    part = run / "steps/rank=0/part-000001.parquet"
    for path in (part, run / "rank=0.json", run / "control.json", run / "rank=0.lock"):
        path.write_bytes(bomb)
    assert main(["sql", str(run), "select count(*) as n from steps", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert out == "n\n1\n" and f"{part} is left out: not a readable Parquet file" in err
    assert main(["control", str(run)]) == 0
    assert main(["report", str(run)]) == 1
    assert "no tensor was recorded" in capsys.readouterr().err
    for name in ("CURRENT", "run.json"):
        (run / name).write_bytes(bomb)
        assert main(["report", str(run)]) == 1
        assert f"{run / name}" in capsys.readouterr().err
        if name == "CURRENT":
            (run / name).unlink()
    assert main(["runs", str(tmp_path)]) == 0
    assert "unreadable" in capsys.readouterr().out
    assert not marker.exists()


def test_a_pickle_in_place_of_any_other_input_is_refused(
    bomb: bytes, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.pkl", "a.csv", "a.json", "fp8debug.toml", "plan.yaml", "own.sql", "names.txt"):
        (tmp_path / name).write_bytes(bomb)
    (tmp_path / "rules.toml").write_text('rule-files = ["own.sql"]\n')
    (tmp_path / "plan.toml").write_text('recipe = "current"\n')
    plan, names = str(tmp_path / "plan.yaml"), str(tmp_path / "names.txt")
    tagged = tmp_path / "tagged.yaml"
    tagged.write_text(f"a: !!python/object/apply:builtins.open [{marker}, w]\n")
    for command in (
        ["compare", str(tmp_path / "a.csv"), str(tmp_path / "a.json")],
        ["compare", str(tmp_path / "a.pkl"), str(tmp_path / "a.pkl")],
        ["rules", "--config", str(tmp_path / "fp8debug.toml")],
        ["rules", "--config", str(tmp_path / "rules.toml")],
        ["plan", "--check", plan, names],
        ["plan", "--check", str(tagged), names],
        ["plan", "--check", str(tmp_path / "plan.toml"), names],
        ["sql", str(tmp_path), "-f", str(tmp_path / "own.sql")],
    ):
        assert main(command) in (1, 2), command
        assert capsys.readouterr().err.startswith("fp8debug: ")
    assert not marker.exists()
