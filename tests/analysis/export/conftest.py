"""A run of two steps whose numbers are known without computing them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis import Run, open_run

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

HOSTILE = 'a"b\\c\nd{e="f",} 1\r\x1b[31m\u2028<script>&é'
STARTED = 1_700_000_000.25


@pytest.fixture
def hostile() -> str:
    """Name of the second layer of `known`."""
    return HOSTILE


@pytest.fixture(scope="session")
def known(synthetic_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """x of two layers at steps 0 and 7, the second without samples and without a time.

    E4M3 at scale 2: 448 overflows, 2^-12 becomes 0, and current scaling would have scale 1: a gap of 1 bit.
    """
    path = tmp_path_factory.mktemp("export") / "known"
    run: SyntheticRun = synthetic_run.SyntheticRun(path, recipes=["delayed"], status="closed")
    x = np.array([448, 1, 2.0**-12, 0], dtype=np.float32)
    for step in (0, 7):
        for layer in ("fc", HOSTILE):
            scale = synthetic_run.ForcedScale(2.0 if step == 0 else 4.0)
            run.add(layer, "x", x, step=step, sampled=step == 0, scales=(scale,), with_current=False)
    bad = np.array([np.nan, np.inf, 1, -2], dtype=np.float32)
    run.add("fc", "dy", bad, step=7, sampled=False)
    run.add_row("steps", step=0, loss=2.5, grad_norm=1.5, lr=0.125, started_unix_s=STARTED)
    run.add_row("steps", step=7, loss=float("nan"))
    run.add_row("events", step=None, unix_s=0.0, kind="never_fired", layer="head", message="it never ran")
    run.write()
    with open_run(run.path, threads=1) as opened:
        yield opened
