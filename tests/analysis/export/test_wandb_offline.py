"""What does not need wandb's service; an offline run is made and read back in the test of the command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fp8debug.analysis import Run
from fp8debug.analysis.export import Narrowing, write_wandb
from fp8debug.errors import UsageError


def test_without_the_package(known: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    with pytest.raises(UsageError, match=r"pip install 'fp8debug\[wandb\]'"):
        write_wandb(known, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert {name: value for name, value in os.environ.items() if "WANDB" in name} == {"WANDB_PROJECT": "theirs"}


def test_an_earlier_export_is_kept(known: Run, tmp_path: Path) -> None:
    (tmp_path / "wandb" / "offline-run-20260101_000000-synthetic").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds an earlier export, wandb/offline-run-20260101_000000-synthetic"):
        write_wandb(known, tmp_path)


def test_nothing_selected(known: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was not recorded"):
        write_wandb(known, tmp_path / "out", Narrowing(tensors=("w",)))
    assert not (tmp_path / "out").exists()
