"""A checkpoint and several references of it (master, trained, exported): every two held against each other, and which
step of the way lost something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor, Comparison
from fp8debug.analysis.checkpoint.reference.comparison import compare_stores
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.errors import Fp8DebugError


@dataclass(frozen=True, slots=True)
class Link:
    """Two checkpoints held against each other."""

    name: str
    """The one that is looked at."""
    reference: str
    """The one that it is held against."""
    n: int
    """Tensors that both have."""
    n_equal: int
    """Those with the same values, in the same or another encoding."""
    n_faithful: int
    """One rounding apart."""
    n_requantised: int
    """Two roundings apart, or a rounding of quantised values."""
    n_different: int
    sqnr_db_median: float | None
    """Over the tensors that are not equal; None: all are."""
    sqnr_db_min: float | None
    rel_l2_median: float | None
    rel_l2_max: float | None
    message: str
    """A sentence."""


@dataclass(frozen=True, slots=True)
class ThreeWay:
    """Several checkpoints of one model."""

    names: tuple[str, ...]
    """The references in the order given, then the checkpoint: taken for the order in which they were made."""
    links: tuple[Link, ...]
    """Every two: a later one against an earlier one."""
    verdict: str
    """Which step lost something."""


def compare_three_ways(
    path: str, comparisons: Sequence[Comparison], told: Callable[[str], None] = lambda words: None
) -> ThreeWay:
    """Hold the references of a checkpoint against one another too.

    Args:
        path: of the checkpoint.
        comparisons: it against each of two or more references, in the order in which these were made.
        told: progress.

    Raises:
        Fp8DebugError: a reference cannot be read.
    """
    names = [comparison.reference for comparison in comparisons]
    links = [*_among(names, told), *(_link(path, one.reference, one.tensors) for one in comparisons)]
    by_names = {(link.reference, link.name): link for link in links}
    steps = [by_names.get(step) for step in pairwise([*names, path])]
    return ThreeWay((*names, path), tuple(links), _verdict([step for step in steps if step is not None]))


def _among(names: Sequence[str], told: Callable[[str], None]) -> Iterable[Link]:
    with ExitStack() as kept:
        stores = [kept.enter_context(open_store(Path(name))) for name in names]
        sides = [(store, read_convention(store)) for store in stores]
        for later in range(1, len(names)):
            for earlier in range(later):
                told(f"comparing {names[later]} with {names[earlier]}")
                try:
                    _, tensors = compare_stores(sides[later], sides[earlier], told, needs_causes=False)
                except Fp8DebugError:  # nothing in common: each has something in common with the checkpoint
                    tensors = ()
                yield _link(names[later], names[earlier], tensors)


def _link(name: str, reference: str, tensors: Sequence[ComparedTensor]) -> Link:
    def count(*verdicts: str) -> int:
        return sum(tensor.verdict in verdicts for tensor in tensors)

    apart = [tensor for tensor in tensors if tensor.verdict not in ("identical", "recoded")]
    sqnrs = [tensor.sqnr_db for tensor in apart if tensor.sqnr_db is not None]
    rels = [tensor.rel_l2 for tensor in apart if tensor.rel_l2 is not None]
    n, n_equal, n_faithful = len(tensors), count("identical", "recoded"), count("faithful")
    n_requantised, n_different = count("requantised"), count("different")
    lost = f" (SQNR {median(sqnrs):.1f} dB, relative error {median(rels):.2g})" if sqnrs and rels else ""
    return Link(
        name, reference, n, n_equal, n_faithful, n_requantised, n_different,
        median(sqnrs) if sqnrs else None, min(sqnrs, default=None),
        median(rels) if rels else None, max(rels, default=None),
        _message(name, reference, n, n_equal, n_requantised, n_different) + lost,
    )  # fmt: skip


def _message(name: str, reference: str, n: int, n_equal: int, n_requantised: int, n_different: int) -> str:
    if n == 0:
        return f"{name} and {reference} have no tensor in common"
    if n_different:
        return f"{name} differs from {reference} in {n_different:,} of {n:,} tensors"
    if n_equal == n:
        return f"{name} equals {reference}"
    how = "another rounding of rounded values" if n_requantised else "one rounding"
    return f"{name} differs from {reference} by {how} in {n - n_equal:,} of {n:,} tensors"


def _verdict(steps: Sequence[Link]) -> str:
    """The steps in order, and the first one that lost more than a rounding."""
    told = "; ".join(step.message for step in steps)
    wrong = [step for step in steps if step.n_different]
    if wrong:
        return f"{told}. What is wrong came in between {wrong[0].reference} and {wrong[0].name}."
    lossy = [step for step in steps if step.n_faithful or step.n_requantised]
    if len(lossy) > 1:
        return f"{told}. {len(lossy)} steps round, one after another: their errors add up."
    return f"{told}."
