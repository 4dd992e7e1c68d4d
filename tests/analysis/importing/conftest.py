"""Logs written by `nvdlfw_inspect` itself, and runs made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fp8debug.analysis.importing import Imported, import_te_logs
from fp8debug.rundir import RunDir

Scalars = Iterable[tuple[str, int, float]]
"""Name, iteration, value."""
WriteLog = Callable[..., Path]
Import = Callable[..., Imported]


@pytest.fixture
def write_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteLog:
    """`write_log(scalars, rank=0)` has the statistics logger of `nvdlfw_inspect` log them; returns its file."""
    import torch.distributed
    from nvdlfw_inspect.logging import FileLogger

    def write(scalars: Scalars, rank: int = 0, folder: str = "logs", **settings: Any) -> Path:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        logger = FileLogger("nvdlfw_inspect", str(tmp_path))
        logger._initialize_stats_logger(folder, **settings)
        try:
            for name, iteration, value in scalars:
                logger.log_scalar(name, value, iteration)
        finally:
            for handler in list(logger.stats_logger.handlers):
                handler.close()
                logger.stats_logger.removeHandler(handler)
        return tmp_path / folder / f"nvdlfw_inspect_globalrank-{rank}.log"

    return write


@pytest.fixture
def import_logs(tmp_path: Path) -> Import:
    """`import_logs(files)` makes the run `tmp_path / "run"`."""

    def imported(files: Sequence[Path], **more: Any) -> Imported:
        return import_te_logs(files, RunDir(tmp_path / "run"), begin=(tmp_path / "run").mkdir, **more)

    return imported
