"""Models named on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from fp8debug.errors import UsageError
from fp8debug.hooks.model_source import is_model_source, load_model

SOURCE = """
from torch import nn
from sizes_of_a_model import WIDTH

class Small(nn.Linear):
    def __init__(self, width: int = WIDTH):
        super().__init__(width, 4)

def build():
    return nn.Sequential(Small(), nn.ReLU())

def sized(width, *, depth, bias=True):
    return Small(width)

def breaks():
    raise KeyError("no vocabulary")

made = build()
number = 3
assert __name__ != "__main__"
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[str]:
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "sizes_of_a_model.py").write_text("WIDTH = 8\n")
    (tmp_path / "a_model_source.py").write_text(SOURCE)
    yield str(tmp_path / "a_model_source.py")
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name in ("sizes_of_a_model", "a_model_source"):
            del sys.modules[name]


def test_function_class_and_object(file: str) -> None:
    built = load_model(f"{file}:build")
    assert [type(m).__name__ for m in built.children()] == ["Small", "ReLU"]
    small = load_model(f"{file}:Small")
    assert isinstance(small, nn.Linear) and small.in_features == 8
    assert isinstance(load_model(f"{file}:made"), nn.Sequential)
    assert is_model_source(f"{file}:build") and not is_model_source(file)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (":biuld", "has no biuld; nearest names: build"),
        (":sized", "needs width, depth; expected a function without required arguments"),
        (":number", "is of type int; expected an nn.Module"),
        (":breaks", r"could not be called: KeyError: 'no vocabulary' \(a_model_source.py, line 16\)"),
        ("", "a_model_source.py'; expected file.py:name.*:build_model"),
    ],
)
def test_what_is_wrong_is_said(file: str, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_model(file + name)


def test_no_file_and_a_file_that_fails(file: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file: .*a_model_sorce.py \(nearest: a_model_source.py"):
        load_model(file.replace("source", "sorce") + ":build")
    (tmp_path / "failing_model_source.py").write_text("import sys\nsys.exit(4)\n")
    with pytest.raises(UsageError, match="could not be imported: SystemExit: 4"):
        load_model(f"{tmp_path}/failing_model_source.py:build")
    with pytest.raises(UsageError, match=r"has no config\.json"):
        load_model(str(tmp_path))
