"""Sources of a comparison on one page: runs with their tensors, and curves that have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.compare import Comparison
from fp8debug.analysis.compare.comparison import CurveFacts
from fp8debug.analysis.compare.sources import read_source
from fp8debug.analysis.compare.spikes import Spike
from fp8debug.analysis.page.build import formats_of, page_runs
from fp8debug.analysis.page.metrics import metrics_of
from fp8debug.analysis.page.records import FormatRange, Metric, PageRun
from fp8debug.analysis.page.training import curve_training
from fp8debug.analysis.run import open_run
from fp8debug.analysis.thresholds import resolve
from fp8debug.storage import run_path


@dataclass(frozen=True, slots=True, eq=False)
class SeveralPage:
    """What is drawn of a comparison."""

    runs: tuple[PageRun, ...]
    """The baseline first; all on the same layers and columns."""
    metrics: tuple[Metric, ...]
    formats: tuple[FormatRange, ...]


def several_page(found: Comparison) -> SeveralPage:
    """The sources of a comparison, which are read again by their names.

    Raises:
        Fp8DebugError: one of them is gone.
    """
    told = list(_told(found))
    names = short_names([facts.name for facts, _ in told])
    recorded = [(facts.name, name) for (facts, _), name in zip(told, names, strict=True) if facts.kind == "run"]
    with ExitStack() as stack:
        runs = [stack.enter_context(open_run(run_path(path))) for path, _ in recorded]
        pages = page_runs(runs, [name for _, name in recorded]) if runs else []
    left = iter(pages)
    shown = tuple(
        next(left) if facts.kind == "run" else _curve_page(name, facts, spikes, pages)
        for (facts, spikes), name in zip(told, names, strict=True)
    )
    planes = [plane for page in shown for plane in page.planes]
    return SeveralPage(shown, metrics_of(planes, resolve()), formats_of(shown))


def short_names(paths: Sequence[str]) -> list[str]:
    """The last parts of paths, as many of them as tell all apart."""
    parts = [path.rstrip("/").split("/") for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(set(paths)):
            return short
    return list(paths)


def _told(found: Comparison) -> Iterator[tuple[CurveFacts, Sequence[Spike]]]:
    """Each source with the spikes that were found in it."""
    yield found.baseline, found.pairs[0].signals.baseline_spikes if found.pairs else ()
    yield from ((pair.run, pair.signals.spikes) for pair in found.pairs)


def _curve_page(name: str, facts: CurveFacts, spikes: Sequence[Spike], runs: Sequence[PageRun]) -> PageRun:
    """A curve on the axes of the runs beside it."""
    nothing = np.empty(0, dtype=np.int64)
    curves, notes = curve_training(read_source(facts.name), spikes)
    return PageRun(
        name=name,
        path=facts.name,
        layers=runs[0].layers if runs else (),
        first_steps=runs[0].first_steps if runs else nothing,
        last_steps=runs[0].last_steps if runs else nothing,
        planes=(),
        training=curves,
        distributions=(),
        notes=notes,
        span=runs[0].span if runs else 1,
    )
