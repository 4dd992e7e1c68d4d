"""What must be known of imported numbers, in sentences: lines that gave none, what four decimals hide, what the log's
own definitions do. Each becomes an event of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fp8debug.analysis.importing.tally import Place, Seen, Tally
from fp8debug.errors import escape, some

_GAP = 2
"""So many times the usual distance between logged steps is a gap."""
_HARMED = ("mse", "scale_inv_min", "scale_inv_max", "amax", "min", "max", "std", "mean", "l1_norm", "l2_norm")
"""Statistics of which zero says nothing; a share below 0.00005 % is as good as none."""


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence, and the kind of event that it is."""

    kind: str
    message: str


def notes_of(tally: Tally, by_rank: Mapping[int, Sequence[Path]]) -> list[Note]:
    """All that is to be said of an import from the files of `by_rank`: what concerns them first."""
    return [
        *_unread(tally),
        *_ranks(tally, by_rank),
        *_order(tally),
        *_gaps(tally),
        *_floor(tally),
        *_definitions(tally),
    ]


def _unread(tally: Tally) -> Iterator[Note]:
    for reason, n in tally.n_unread.most_common():
        places = [_quoted(place) for place in tally.unread[reason]]
        lines = "1 line was" if n == 1 else f"{n:,} lines were"
        more = f"; and {n - len(places):,} more" if n > len(places) else ""
        yield Note("unread_line", f"{lines} not read ({escape(reason)}): {'; '.join(places)}{more}")


def _quoted(place: Place) -> str:
    text = f' "{escape(place.text[:100])}{"..." if len(place.text) > 100 else ""}"' if place.text else ""
    return f"{escape(place.path.name)} line {place.line:,}{text}"


def _ranks(tally: Tally, by_rank: Mapping[int, Sequence[Path]]) -> Iterator[Note]:
    if tally.empty:
        yield Note("empty_log", f"nothing is in {some([escape(path.name) for path in tally.empty])}")
    for rank, files in sorted(by_rank.items()):
        if len(files) > 1:
            names = some([escape(path.name) for path in files])
            yield Note("log_order", f"{len(files)} files are of rank {rank} and were read in this order: {names}")
    if tally.n_alike:
        yield Note(
            "ranks_alike",
            f"the logs of {len(by_rank)} ranks give {tally.n_alike:,} numbers that a lower rank gives too, since "
            "Transformer Engine reduces over ranks before it logs: each is kept once, under the lowest rank",
        )
    if tally.n_differing:
        yield Note(
            "ranks_differ",
            f"{tally.n_differing:,} numbers differ from those of a lower rank: they are not reduced over these ranks, "
            "and are kept for each",
        )


def _order(tally: Tally) -> Iterator[Note]:
    if tally.restarts:
        told = [f"rank {r.rank} from step {r.last_step} to {r.step} ({_quoted(r.place)})" for r in tally.restarts]
        yield Note(
            "log_restart",
            f"the iteration goes back: {some(told)}; the training was started again there, and of a step that was "
            "logged twice the last start counts",
        )
    per_rank = Counter(restart.rank for restart in tally.restarts)
    if per_rank and len(set(per_rank.values())) > 1:
        yield Note("log_restart", "the logs of the ranks go back at different places: restarts may be matched wrongly")
    if tally.n_repeated:
        yield Note(
            "log_repeat", f"{_lines(tally.n_repeated)} an earlier one of the same step word by word: counted once"
        )
    if tally.n_uses:
        yield Note(
            "log_repeat",
            f"{_numbers(tally.n_uses)} beside another number of the same name and step, as of a layer that is used "
            "several times, or of an unreduced micro-batch: all are kept, as calls 0, 1, ...",
        )


def _numbers(n: int) -> str:
    return "1 number stands" if n == 1 else f"{n:,} numbers stand"


def _lines(n: int) -> str:
    return "1 line repeats" if n == 1 else f"{n:,} lines repeat"


def _gaps(tally: Tally) -> Iterator[Note]:
    steps = sorted(tally.steps)
    distances = Counter(b - a for a, b in pairwise(steps))
    if not distances:
        return
    usual = distances.most_common(1)[0][0]
    gaps = [f"{a} and {b}" for a, b in pairwise(steps) if b - a > _GAP * usual]
    if gaps:
        yield Note("log_gap", f"steps were logged every {usual}, and none between {some(gaps)}")


def _floor(tally: Tally) -> Iterator[Note]:
    found = {statistic: _sum(seen for _, seen in tally.kinds(statistic)) for statistic in _HARMED}
    harmed = [f"{seen.n_at_floor:,} of {seen.n:,} {name}" for name, seen in found.items() if seen.n_at_floor]
    if harmed:
        yield Note(
            "log_floor",
            f"{', '.join(harmed)} values are printed as 0.0000: they are below 0.00005, which is what four decimals "
            "can show, and need not be zero",
        )


def _definitions(tally: Tally) -> Iterator[Note]:
    """What the log's numbers are, where that is not what their names say."""
    scales = [(kind, seen) for kind, seen in tally.kinds("scale_inv_min", "scale_inv_max")]
    if any(kind.recipe == "mxfp8" for kind, _ in scales):
        yield Note(
            "log_definition",
            "scale_inv_min and scale_inv_max of mxfp8 are codes of exponents, not factors: code c is 2^(c-127)",
        )
    if any(kind.recipe is None and seen.n_code_like == seen.n for kind, seen in scales):
        yield Note(
            "log_definition",
            "all scale_inv_min or scale_inv_max values without a recipe's name are whole numbers from 2 to 254: if the "
            "training ran in MXFP8, they are codes of exponents, and code c is 2^(c-127)",
        )
    if any(kind.columnwise for kind, _ in tally.kinds("mse")):
        yield Note(
            "log_definition",
            "mse values named columnwise are computed from the row-wise data wherever both exist: they say nothing of "
            "the column-wise ones",
        )
    if any(kind.recipe == "block" for kind in tally.numbers):
        yield Note(
            "log_definition",
            "numbers of fp8_block_scaling are of blocks of 128 x 128 for every tensor where that is not the recipe in "
            "use, although the recipe itself scales activations and gradients in blocks of 1 x 128",
        )
    yield from _std(_sum(seen for _, seen in tally.kinds("std")))
    shares = _sum(seen for _, seen in tally.kinds("underflow_all"))
    if shares.n_negative:
        yield Note(
            "log_definition",
            f"{shares.n_negative:,} of {shares.n:,} underflows are negative: an old version counted -0 as a value",
        )


def _std(std: Seen) -> Iterator[Note]:
    if std.n:
        yield Note(
            "log_definition",
            f"std is too small, or NaN ({std.n_nan:,} of {std.n:,}), where it was merged over ranks or micro-batches "
            "of different means: known versions of Transformer Engine subtract the spread of the means instead of "
            "adding it",
        )


def _sum(found: Iterator[Seen]) -> Seen:
    total = Seen()
    for seen in found:
        for name in Seen.__slots__:
            setattr(total, name, getattr(total, name) + getattr(seen, name))
    return total
