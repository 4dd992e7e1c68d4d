"""Which records a what-if is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.parts import quote_texts
from fp8debug.analysis.run import Run
from fp8debug.analysis.scope import matching_layers, steps_condition
from fp8debug.config import KNOWN_TENSORS
from fp8debug.errors import Fp8DebugError, UsageError

StepRanges = Sequence[tuple[int, int | None]]

JUDGED_PASSES = "is_judged_pass(pass)"
"""Evaluation enters no history, unless the run serves, and a recomputed pass would count twice."""


@dataclass(frozen=True, slots=True)
class Selection:
    """SQL conditions on the columns of the record key."""

    tensors: tuple[str, ...]
    operands: str
    """On layer and tensor."""
    layers: str
    steps: str
    pieces: str = "true"
    """One replica of each piece of a tensor, where there are several ranks."""

    @property
    def records(self) -> str:
        """All of them, training passes only."""
        return f"{self.operands} and {self.steps} and {JUDGED_PASSES} and {self.pieces}"


def select(run: Run, layer: str | None, tensors: Sequence[str] | None, steps: StepRanges | None) -> Selection:
    """Check what is asked for against what was recorded.

    Raises:
        UsageError: a regex that does not compile or matches no layer, a tensor or steps that were not recorded.
        Fp8DebugError: nothing was recorded at all.
    """
    con = run.prepare("")
    recorded = [row[0] for row in con.execute("select distinct tensor from stored.tensors").fetchall()]
    known = tuple(tensor for tensor in KNOWN_TENSORS if tensor in recorded)
    if not known:
        raise Fp8DebugError(f"no tensor was recorded in {run.path}; record a run with `fp8debug attach train.py`")
    chosen = known if tensors is None else tuple(tensor for tensor in KNOWN_TENSORS if tensor in tensors)
    for tensor in chosen:
        if tensor not in known:
            wanted = ",".join(name for name in KNOWN_TENSORS if name in (*known, *chosen))
            raise UsageError(
                f"{tensor} was not recorded; this run has {', '.join(known)}; record it with "
                f"`fp8debug attach --tensors {wanted} ...`"
            )
    by_layer = "true" if not layer else f"layer in ({quote_texts(matching_layers(con, layer, run.manifest))})"
    by_step = "true" if not steps else steps_condition(con, steps)
    pieces = "(segment, rank, seq) in (select (segment, rank, seq) from shards)" if run.has_groups else "true"
    return Selection(chosen, f"{by_layer} and tensor in ({quote_texts(chosen)})", by_layer, by_step, pieces)


def create_records(run: Run, selection: Selection) -> int:
    """Make the temporary table `whatif_records`, numbered from 0 in order of observation; their number."""
    con = run.prepare("tensors kernel_amax is_judged_pass" + (" shards" if run.has_groups else ""))
    con.execute(f"""
        create or replace temp table whatif_records as
        select
            (row_number() over (order by segment, rank, seq) - 1)::int as record,
            segment, step, microbatch, call, pass, rank, layer, tensor, seq,
            kernel_amax(amax, n_posinf, n_neginf) as amax, amin, approx
        from tensors
        where sampled and {selection.records}
    """)
    (count,) = con.execute("select count(*) from whatif_records").fetchall()[0]
    return int(count)
