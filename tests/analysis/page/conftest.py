"""A small wide run, open, with its report and page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.page import build_page
from fp8debug.analysis.page.records import ReportPage
from fp8debug.analysis.report import Report, build_report

if TYPE_CHECKING:
    from tests.wide_run import WideRun


@dataclass(frozen=True)
class Opened:
    """A run of 8 layers and 90 steps, sampled every third."""

    planted: WideRun
    run: Run
    report: Report
    page: ReportPage


@pytest.fixture(scope="session")
def opened(wide_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    planted = wide_run.write_wide_run(tmp_path_factory.mktemp("wide"), n_layers=8, n_steps=90, sampled_every=3)
    with open_run(planted.path, threads=1) as run:
        report = build_report(run)
        yield Opened(planted, run, report, build_page(run, report))
