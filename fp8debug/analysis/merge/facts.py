"""What a report says of ranks: how many, which are missing, how tensors lie over them, and replicas that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp8debug.errors import some

if TYPE_CHECKING:
    from fp8debug.analysis.run import Run


@dataclass(frozen=True, slots=True)
class Differing:
    """Operands whose replicas differ on the same ranks."""

    operands: tuple[str, ...]
    ranks: tuple[int, ...]
    """Ranks that hold other data than the lowest rank of their replicas."""
    differs: tuple[str, ...]
    """amax | n | nonfinite | checksum"""
    first_step: int

    @property
    def message(self) -> str:
        """One sentence for a person."""
        return (
            f"replicas disagree: {some(self.operands)} on {ranks_text(self.ranks)}, from step {self.first_step} on, in "
            f"{', '.join(self.differs)}"
        )


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The ranks of a run. An operand is one tensor of one layer."""

    n_ranks: int
    n_recorded: int
    missing: tuple[int, ...]
    """Ranks that left no records."""
    notes: tuple[str, ...]
    """What else is odd of single ranks: one that stopped early, or switched itself off."""
    n_sharded: int
    """Operands of which ranks hold different pieces: of the tensor itself, or rows of it."""
    n_replicated: int
    """Operands that some ranks hold the same data of: one of them is counted."""
    n_partial: int
    """Operands that are partial sums on each rank: merged with nothing."""
    differing: tuple[Differing, ...]

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a verdict must not be read without."""
        missing = (f"{ranks_text(self.missing)} left no records",) if self.missing else ()
        return (*missing, *(entry.message for entry in self.differing), *self.notes)


_PLACEMENTS = """
with operand as (
    select
        layer, tensor, bool_or(coalesce(contains(placement, 'partial'), false)) as is_partial,
        count(distinct rank) filter (rank <> replica_of) > 0 as is_replicated,
        count(distinct coalesce(replica_of, rank)) > 1 as is_sharded
    from tensors
    group by layer, tensor
)
select
    count(*) filter (is_sharded and not is_partial), count(*) filter (is_replicated), count(*) filter (is_partial)
from operand
"""
_DIFFERING = """
with odd as (
    select layer, tensor, unnest(odd_ranks) as rank, differs, step from replica_checks where not agree
),
operand as (
    select
        layer || ' ' || tensor as operand, list_sort(list(distinct rank)) as ranks, min(step) as first_step,
        list_sort(list_distinct(flatten(list(differs)))) as differs
    from odd
    group by layer, tensor
)
select list_sort(list(operand)), ranks, list_sort(list_distinct(flatten(list(differs)))), min(first_step)
from operand
group by ranks
order by ranks
"""


def rank_facts(run: Run) -> RankFacts | None:
    """Look at the ranks of a run; None for a run of one rank."""
    presence = run.presence
    if presence is None:
        return None
    n_sharded, n_replicated, n_partial = run.sql(_PLACEMENTS).fetchall()[0]
    return RankFacts(
        n_ranks=presence.n_ranks,
        n_recorded=len(presence.recorded),
        missing=presence.missing,
        notes=tuple(note.message for note in presence.notes if note.rank not in presence.missing),
        n_sharded=n_sharded,
        n_replicated=n_replicated,
        n_partial=n_partial,
        differing=tuple(
            Differing(tuple(operands), tuple(ranks), tuple(differs), step)
            for operands, ranks, differs, step in run.sql(_DIFFERING).fetchall()
        ),
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2 and 3`, `ranks 1, 2, 3 and 9 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {some([str(rank) for rank in ranks])}"
