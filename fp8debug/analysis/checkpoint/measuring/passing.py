"""The pass itself: every tensor once, several at a time, a few hundred kilobytes of each in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import numpy as np

from fp8debug.analysis.checkpoint.facts import CodeFacts, Facts, PlainFacts
from fp8debug.analysis.checkpoint.measuring.codes import can_count, measure_codes
from fp8debug.analysis.checkpoint.measuring.plain import can_measure, measure_plain
from fp8debug.analysis.checkpoint.measuring.progress import Progress
from fp8debug.analysis.checkpoint.measuring.scales import measure_scale
from fp8debug.analysis.checkpoint.numbers import can_be_numbers
from fp8debug.analysis.checkpoint.records import Convention, Quantised, Scale
from fp8debug.analysis.checkpoint.store import Store, n_bytes_of

MOST_THREADS = 4
_TICK_S = 0.1
_Fact = TypeVar("_Fact")


def measure(
    store: Store,
    convention: Convention,
    told: Callable[[str], None] = lambda words: None,
    *,
    threads: int | None = None,
) -> Facts:
    """Measure all tensors, in one pass; those that nothing explains as plain ones, since NaN matters there too.

    Args:
        store: the checkpoint.
        convention: how it is read.
        told: called ten times a second at most, from this thread, with the share that is done.
        threads: tensors that are read at a time; None: one for two cores, at most MOST_THREADS, since the parts of the
            work that hold the interpreter's lock, and memory, are shared: two on two cores were no faster than one.

    Raises:
        Fp8DebugError: a file has changed or ends too early.
    """
    codes = [one for one in convention.quantised if can_count(store, one)]
    scales = _scales_of(convention)
    others = store.tensors.keys() - {one.name for one in convention.quantised} - scales.keys()
    plain = [stored for name, stored in store.tensors.items() if name in others and can_measure(stored)]
    names = [one.name for one in codes] + list(scales) + [one.name for one in plain]
    progress = Progress(sum(n_bytes_of(store.tensors[name]) for name in names))
    with _Workers(threads or max(1, min((os.cpu_count() or 1) // 2, MOST_THREADS)), progress, told) as workers:
        of_scales = {
            name: workers.give(measure_scale, store, scale, owner, progress) for name, (scale, owner) in scales.items()
        }
        of_codes = {one.name: workers.give(measure_codes, store, one, progress) for one in codes}
        of_plain = {one.name: workers.give(measure_plain, store, one, progress) for one in plain}
        workers.finish()
    return Facts(_results(of_codes), _results(of_scales), _results(of_plain))


def scales_only(store: Store, convention: Convention, told: Callable[[str], None] = lambda words: None) -> Facts:
    """Facts of the scales alone: what headers and a few bytes tell.

    Args:
        store: the checkpoint.
        convention: how it is read.
        told: called with how far it is.

    Raises:
        Fp8DebugError: a file has changed or ends too early.
    """
    wanted = _scales_of(convention)
    progress = Progress(sum(n_bytes_of(store.tensors[name]) for name in wanted), "scales")
    scales = {}
    for name, (scale, owner) in wanted.items():
        told(progress.words())
        scales[name] = measure_scale(store, scale, owner, progress)
    no_codes: dict[str, CodeFacts] = {}
    no_plain: dict[str, PlainFacts] = {}
    return Facts(no_codes, scales, no_plain)


def _scales_of(convention: Convention) -> dict[str, tuple[Scale, Quantised | None]]:
    """All scales by name, with the codes that they belong to."""
    found: dict[str, tuple[Scale, Quantised | None]] = {}
    of_codes = [(scale, one) for one in convention.quantised for scale in one.scales]
    for scale, owner in [*of_codes, *((scale, None) for scale in convention.scales)]:
        if can_be_numbers(scale.encoding):
            found.setdefault(scale.name, (scale, owner))
    return found


def _results(futures: Mapping[str, Future[_Fact]]) -> dict[str, _Fact]:
    return {name: future.result() for name, future in futures.items()}


class _Workers:
    """Threads that measure, while the caller's thread tells how far they are."""

    def __init__(self, threads: int, progress: Progress, told: Callable[[str], None]) -> None:
        quiet = partial(np.seterr, all="ignore")  # threads do not inherit what the caller has set
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fp8debug-measure", initializer=quiet)
        self._progress, self._told = progress, told
        self._given: list[Future[object]] = []

    def give(self, measure_one: Callable[..., _Fact], *args: object) -> Future[_Fact]:
        future = self._pool.submit(partial(measure_one, *args))
        self._given.append(future)  # type: ignore[arg-type]
        return future

    def finish(self) -> None:
        """Wait for all, or for the first that fails: that one is raised."""
        waiting: Iterable[Future[object]] = self._given
        while waiting:
            done, waiting = wait(waiting, timeout=_TICK_S)
            for future in done:
                future.result()
            self._told(self._progress.words())

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._pool.shutdown(cancel_futures=True)
