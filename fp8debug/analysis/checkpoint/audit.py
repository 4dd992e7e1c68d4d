"""The audit of a checkpoint, from its path to findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fp8debug.analysis.checkpoint.asked import check_asked, is_run
from fp8debug.analysis.checkpoint.checks import CHECKS
from fp8debug.analysis.checkpoint.checks.consumer import consumer_named
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject, findings_of
from fp8debug.analysis.checkpoint.checks.sharding import checked_tp
from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.facts import Facts
from fp8debug.analysis.checkpoint.measuring import measure, scales_only
from fp8debug.analysis.checkpoint.ran.comparison import compare_with_run
from fp8debug.analysis.checkpoint.ran.pairs import pair_of_run
from fp8debug.analysis.checkpoint.ran.precision import modules_of, precision_of_run
from fp8debug.analysis.checkpoint.records import CheckFinding, Convention
from fp8debug.analysis.checkpoint.reference import (
    Comparison,
    ThreeWay,
    compare_opened,
    compare_three_ways,
    compare_with,
    once_each,
)
from fp8debug.analysis.checkpoint.reference.upheld import upheld
from fp8debug.analysis.checkpoint.store import Store, open_store
from fp8debug.analysis.displayed import Displayed
from fp8debug.analysis.run import Run, open_run

AUDIT_VERSION = 1
"""Of the JSON object that `--json` prints."""

Told = Callable[[str], None]
"""Called with words for what is being done."""


@dataclass(frozen=True, slots=True)
class Audit(Displayed):
    """What is known of a checkpoint after an audit."""

    path: str
    n_files: int
    n_tensors: int
    n_bytes: int
    convention: Convention
    facts: Facts
    findings: tuple[CheckFinding, ...]
    comparisons: tuple[Comparison, ...]
    """One a reference, and one with a run."""
    problems: tuple[str, ...]
    """What could not be read, and what was left out."""
    three_way: ThreeWay | None = None
    """Where there are several references: every two of all, and which step lost something."""
    headers_only: bool = False
    """Whether codes and weights were not read."""

    @property
    def n_errors(self) -> int:
        """Findings that are errors."""
        return sum(finding.severity == "error" for finding in self.findings)


@np.errstate(all="ignore")  # numbers of a strange file overflow; what comes of them is counted as infinite and NaN
def audit_checkpoint(
    path: str | Path,
    references: Sequence[str | Path] = (),
    *,
    dialect: str | None = None,
    tp: Sequence[int] = (),
    consumer: str | None = None,
    valid_rows: int | None = None,
    headers_only: bool = False,
    run: str | Path | None = None,
    told: Told = lambda words: None,
) -> Audit:
    """Say how a checkpoint is read, and what is wrong with it.

    Args:
        path: safetensors file, a folder of them, a torch.distributed.checkpoint folder, a .pt file; or a run directory,
            which stands for what its GEMMs read of their weights, held against these.
        references: checkpoints of the same model, high precision or not, to hold it against.
        dialect: how it is to be read; None: recognised from what is in it.
        tp: tensor-parallel sizes that it is to be sharded for.
        consumer: who is to read it.
        valid_rows: rows of matrices that hold something; None: all.
        headers_only: read headers and scales alone.
        run: run directory whose weights it is held against.
        told: progress.

    Raises:
        Fp8DebugError: it cannot be read.
        UsageError: it can be read in several ways, or an option names something unknown or contradicts another.
    """
    check_asked(path, references, run, dialect, headers_only)
    tp = checked_tp(tp)
    if consumer is not None:
        consumer_named(consumer)  # before anything is read
    if is_run(path):
        store, convention, weights = pair_of_run(path)
        theirs = (weights, Convention(None, "", "", (), plain=tuple(weights.tensors)))
        subject = _measured(store, convention, tp, consumer, valid_rows, headers_only, None, told)
        compared = [compare_opened(subject, theirs, f"the weights of {path}", told)] if weights.tensors else []
        return _audit(path, subject, compared)
    told("reading headers")
    with open_store(path) as store, nullcontext() if run is None else open_run(run) as opened:
        convention = read_convention(store, dialect)
        subject = _measured(store, convention, tp, consumer, valid_rows, headers_only, opened, told)
        compared = [compare_with(subject, reference, told) for reference in references]
        three_way = None
        if len(compared) > 1:
            three_way = compare_three_ways(str(path), [comparison for comparison, _ in compared], told)
        if opened is not None:
            told(f"comparing with {run}")
            compared.append(compare_with_run(subject, opened))
        return replace(_audit(path, subject, compared, three_way), headers_only=headers_only)


def _measured(
    store: Store,
    convention: Convention,
    tp: Sequence[int],
    consumer: str | None,
    valid_rows: int | None,
    headers_only: bool,
    run: Run | None,
    told: Told,
) -> Subject:
    """What checks look at."""
    facts = scales_only(store, convention, told) if headers_only else measure(store, convention, told)
    ran = None if run is None else precision_of_run(run, modules_of(convention))
    return Subject(store, convention, facts, tuple(tp), consumer, valid_rows, ran)


def _audit(
    path: str | Path,
    subject: Subject,
    compared: Sequence[tuple[Comparison, list[Hit]]],
    three_way: ThreeWay | None = None,
) -> Audit:
    store = subject.store
    rows = {name: n for comparison, _ in compared for name, n in comparison.rows.items()}
    subject = replace(subject, reference_rows=rows)
    comparisons = tuple(comparison for comparison, _ in compared)
    hits = upheld((hit for check in CHECKS for hit in check(subject)), comparisons)
    return Audit(
        path=str(path),
        n_files=len({stored.file for stored in store.tensors.values()}),
        n_tensors=len(store.tensors),
        n_bytes=store.n_bytes,
        convention=subject.convention,
        facts=subject.facts,
        findings=findings_of([*hits, *once_each(hit for _, more in compared for hit in more)]),
        comparisons=comparisons,
        problems=store.problems,
        three_way=three_way,
    )
