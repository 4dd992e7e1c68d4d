"""What can be run is found, and what cannot is explained in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fp8debug.cli.targets import NotRunnable, container_spec, find_target, module_spec
from fp8debug.errors import Fp8DebugError, UsageError


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, a module and a package; names that no other test imports."""
    for name in ("train.py", "targets_plain.py", "targets_package/__init__.py", "targets_package/module.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    return tmp_path


@pytest.mark.parametrize(
    ("given", "module", "kind", "title"),
    [
        ("train.py", False, "file", "train.py"),
        ("targets_package/module.py", False, "file", "module.py"),
        ("targets_package", False, "container", "targets_package"),
        ("targets_package/", False, "container", "targets_package"),
        ("targets_plain", True, "module", "targets_plain"),
        ("targets_package.module", True, "module", "module"),
        ("targets_package.__main__", True, "module", "targets_package"),
    ],
)
def test_found(given: str, module: bool, kind: str, title: str) -> None:
    target = find_target(given, module=module)
    assert (target.given, target.kind, target.title) == (given, kind, title)


def test_current_folder_is_named_by_its_name(programs: Path) -> None:
    assert find_target(".", module=False).title == programs.name


@pytest.mark.parametrize(
    ("given", "module", "error", "message"),
    [
        ("12345", False, UsageError, r"attach takes a script, got 12345.*call fp8debug\.attach\(model\) in it"),
        ("trian.py", False, UsageError, r"no such script: trian\.py \(nearest: train\.py"),
        ("targets_package/modul.py", False, UsageError, r"\(nearest: targets_package/module\.py"),
        ("nowhere/train.py", False, UsageError, r"no such script: nowhere/train\.py; expected a file to run$"),
        ("targets_plain", False, UsageError, r"or -m targets_plain to run the module"),
        ("-", False, UsageError, "no such script: -"),
        ("targets_plian", True, NotRunnable, r"no module named 'targets_plian' \(nearest: targets_plain"),
        ("", True, NotRunnable, "no module named ''"),
        ("__main__", True, NotRunnable, "no module named '__main__'"),
    ],
)
def test_not_found(given: str, module: bool, error: type[Fp8DebugError], message: str) -> None:
    with pytest.raises(error, match=message):
        find_target(given, module=module)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("targets_package", r"^'targets_package' is a package without a __main__ module"),
        ("targets_package.other", r"^no module named 'targets_package\.other'"),
        ("targets_plain.other", r"^cannot find the module 'targets_plain\.other': ModuleNotFoundError"),
    ],
)
def test_module_that_cannot_run(name: str, message: str) -> None:
    with pytest.raises(NotRunnable, match=message):
        module_spec(name)


def test_folder_without_main() -> None:
    with pytest.raises(NotRunnable, match=r"cannot find a __main__\.py in empty"):
        container_spec(str(Path("empty").resolve()), "empty")
