"""Who imports whom, at run time: import-linter reads the source, this sees what really gets loaded."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


def modules_below(folder: Path, package: str) -> list[str]:
    """Dotted names of every module in `folder`, which is the package `package`."""
    names = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        names.append(".".join((package, *parts)).removesuffix(".__init__"))
    return names


def core_modules(repository: Path) -> list[str]:
    folder = repository / "fp8debug"
    modules = {path.stem for path in folder.glob("*.py") if path.stem[0] != "_"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")} - {
        "hooks",
        "analysis",
        "cli",
        "integrations",
    }
    return [f"fp8debug.{name}" for name in sorted(modules | packages)]


def loaded(*groups: list[str], unwanted: set[str]) -> list[set[str]]:
    """Which of the `unwanted` packages one fresh interpreter has, each time it has imported a group of modules."""
    tell = f"print(*({unwanted!r} & sys.modules.keys()), flush=True)\n"
    imports = ("".join(f"import {name}\n" for name in group) for group in groups)
    code = "import os, sys\n" + "".join(f"{lines}{tell}" for lines in imports) + "os._exit(0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_the_check_can_fail() -> None:
    found = loaded(["json"], ["fp8debug.analysis"], unwanted={"duckdb", "torch", "json"})
    assert found == [{"json"}, {"duckdb", "json"}]


def test_core_needs_numpy_alone(repository: Path) -> None:
    heavy = {"torch", "duckdb", "pyarrow", "rich", "typer", "numba"}
    assert loaded(["fp8debug", *core_modules(repository)], unwanted=heavy) == [set()]


@pytest.mark.parametrize(
    ("package", "first", "unwanted"),
    [
        ("hooks", ["fp8debug.hooks.entry", "fp8debug.hooks.autoattach"], {"duckdb", "rich", "typer"}),
        ("analysis", ["fp8debug.analysis"], {"torch", "numba", "rich", "typer"}),
    ],
)
def test_hooks_and_analysis_stay_apart(repository: Path, package: str, first: list[str], unwanted: set[str]) -> None:
    """Captures load no query engine, reports no torch; not what is imported first by both, and not any module."""
    modules = modules_below(repository / "fp8debug" / package, f"fp8debug.{package}")
    assert len(modules) > 3
    other = "analysis" if package == "hooks" else "hooks"
    assert loaded(first, modules, unwanted={*unwanted, f"fp8debug.{other}"}) == [set(), set()]


def test_every_core_module_is_under_the_core_contract(repository: Path) -> None:
    config = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {c["name"]: c for c in config["tool"]["importlinter"]["contracts"]}
    assert sorted(contracts["the core needs numpy alone"]["source_modules"]) == core_modules(repository)
