"""What must be known to read a what-if: what was not recorded, how to record it, and what is not exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif.errors import FINITE, GemmErrors, OperandErrors
from fp8debug.analysis.whatif.selection import JUDGED_PASSES, Selection
from fp8debug.analysis.whatif.starts import Starts
from fp8debug.errors import Fp8DebugError
from fp8debug.recipes import BlockRecipe, DelayedScaling, Recipe

_GEMM_TENSORS = {"x", "w", "dy"}
_TABLES = {"tensors", "histograms", "blocks", "gemms"}


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to know."""

    kind: str
    """bad_file | not_recorded | gemms_not_recorded | sample | approx | warm_up | history | not_finite | no_histogram |
    payload | ranks"""
    message: str
    command: str | None = None
    """What would record the missing."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """What could not be worked out."""

    starts: Starts
    n_incomplete: Mapping[str, int]
    """By recipe, records whose history lacks an amax."""


def notes(
    run: Run,
    recipes: Sequence[Recipe],
    selection: Selection,
    operands: Sequence[OperandErrors],
    gemms: Sequence[GemmErrors],
    gaps: Gaps,
) -> Iterator[Note]:
    """Everything there is to say, what is missing first."""
    yield from _bad_files(run)
    blocks = _recorded(run, "blocks")
    missing = [r.text for r in recipes if isinstance(r, BlockRecipe) and r.text not in blocks]
    yield from _not_recorded(run, missing, blocks)
    if _GEMM_TENSORS & set(selection.tensors):
        yield from _gemms_not_recorded(run, [r.text for r in recipes if r.text not in missing])
    yield from _left_out(run, gaps)
    yield from _without_histogram(run, recipes)
    yield from _inexact(operands, gemms)
    if run.manifest.world_size > 1 and any(isinstance(recipe, DelayedScaling) for recipe in recipes):
        yield Note(
            "ranks",
            "histories of delayed scaling see the largest amax over ranks, as amax reduction does; other recipes scale "
            "what each rank holds by itself",
        )
    yield from _partial(run, selection)


def _partial(run: Run, selection: Selection) -> Iterator[Note]:
    if not run.has_groups:
        return
    operands = run.sql(
        f"""
        select distinct layer || ' ' || tensor as operand
        from tensors
        where sampled and contains(placement, 'partial') and {selection.operands}
        order by operand
        """
    ).fetchall()
    if operands:
        names = _some([operand for (operand,) in operands])
        yield Note("ranks", f"{names} are left out: partial sums on each rank, which no GEMM reads")


def _bad_files(run: Run) -> Iterator[Note]:
    bad = [problem.message for problem in run.problems if problem.table in _TABLES]
    if bad:
        others = len(bad) - 1
        more = (
            f", and so {'is' if others == 1 else 'are'} {others} more file{'' if others == 1 else 's'}"
            if others
            else ""
        )
        yield Note("bad_file", f"{bad[0]}{more}; what is missing here may have been recorded")


def nothing_known(run: Run, recipes: Sequence[Recipe], selection: Selection, gaps: Gaps) -> Fp8DebugError:
    """The error when there is not a single figure."""
    (n_records,) = run.sql("select count(*) from whatif_records").fetchall()[0]
    if not n_records:
        (n_sampled, n_evaluated) = run.sql(
            f"select count(*) filter ({JUDGED_PASSES}), count(*) from tensors where sampled"
        ).fetchall()[0]
        if n_evaluated and not n_sampled:
            return Fp8DebugError(
                f"only evaluation passes were recorded in {run.path}, and a what-if is about training: the script has "
                "to call model.train() before it trains"
            )
        if n_sampled:
            return Fp8DebugError("none of the layers, tensors and steps asked for was sampled; `fp8debug sql` shows "
                                 'which were: "select distinct step from tensors where sampled"')  # fmt: skip
        return Fp8DebugError(
            f"no tensor was sampled in {run.path}, so there is no histogram to answer from; record one with "
            "`fp8debug attach --every 1 ...` or `--first 20`"
        )
    known = list(notes(run, recipes, selection, (), (), gaps))
    reasons = "; ".join(note.message + (f": `{note.command}`" if note.command else "") for note in known)
    reasons = reasons or "what was recorded of it is of other layers, tensors or steps"
    return Fp8DebugError(f"nothing is known of {_some([r.text for r in recipes])} in this run: {reasons}")


def _not_recorded(run: Run, missing: Sequence[str], recorded: Sequence[str]) -> Iterator[Note]:
    if missing:
        yield Note(
            "not_recorded",
            f"{_some(missing)} {'was' if len(missing) == 1 else 'were'} not recorded ({_has(recorded)}), and a "
            "histogram does not say which values share a block",
            _attach(run, "blocks", missing),
        )


def _gemms_not_recorded(run: Run, wanted: Sequence[str]) -> Iterator[Note]:
    recorded = _recorded(run, "gemms")
    missing = [text for text in wanted if text not in recorded]
    if missing:
        yield Note(
            "gemms_not_recorded",
            f"results of GEMMs under {_some(missing)} were not recorded ({_has(recorded)})",
            _attach(run, "gemms", missing),
        )


def _left_out(run: Run, gaps: Gaps) -> Iterator[Note]:
    starts, passes = gaps.starts, int(run.thresholds["warmup_rolls"])
    if starts.recipes:
        yield Note(
            "warm_up",
            f"all records belong to the first {passes} passes of a replayed history, which starts with scale 1: "
            f"nothing can be said of {_some(starts.recipes)}",
        )
    elif starts.n_left_out:
        yield Note(
            "warm_up",
            f"{starts.n_left_out:,} of {starts.n_records:,} records are left out for every recipe: they belong to the "
            f"first {passes} passes of a replayed history, which starts with scale 1",
        )
    for recipe, n in gaps.n_incomplete.items():
        yield Note("history", f"{recipe}: {n:,} records are left out, since an earlier pass has no amax")
    for recipe, n in run.sql(
        f"select recipe, count(*) from whatif_sums where not ({FINITE}) group by recipe order by recipe"
    ).fetchall():
        yield Note("not_finite", f"{recipe}: {n:,} records have no finite error and are left out")


def _without_histogram(run: Run, recipes: Sequence[Recipe]) -> Iterator[Note]:
    # A recipe with a memory may lack a record for reasons of its own.
    sure = [r.text for r in recipes if not isinstance(r, (BlockRecipe, DelayedScaling))]
    if sure:
        n_all, n_without = run.sql(
            """
            select count(*), count(*) filter (record not in (select record from whatif_sums where recipe = $recipe))
            from whatif_records
            """,
            recipe=sure[0],
        ).fetchall()[0]
        if n_without:
            yield Note(
                "no_histogram", f"{n_without:,} of {n_all:,} sampled records have no histogram in this run: left out"
            )
    (n_payload,) = run.sql(
        """
        select count(distinct record)
        from stored.histograms
        join whatif_records using (segment, rank, seq)
        where counted = 'payload'
        """
    ).fetchall()[0]
    if n_payload:
        yield Note(
            "payload",
            f"histograms of FP8 payloads are left out ({n_payload:,}): their loss is in the values already",
        )


def _inexact(operands: Sequence[OperandErrors], gemms: Sequence[GemmErrors]) -> Iterator[Note]:
    rounded = _distinct(entry.tensor for entry in operands if entry.approx is not None)
    if rounded:
        yield Note(
            "approx",
            f"{_some(rounded)}: approximate, since FP32 values were rounded to BF16 before they were counted",
        )
    blocks = [entry for entry in operands if entry.source == "blocks" and entry.gemm is None]
    n, n_total = sum(entry.n for entry in blocks), sum(entry.n_total for entry in blocks)
    if n < 0.99 * n_total:  # the rest may be NaN or Inf
        yield Note("sample", f"block recipes were measured on a sample of {100 * n / n_total:.1f} % of the elements")
    if gemms:
        yield Note(
            "sample", "results of GEMMs are estimates from samples of their rows and columns, named in gemm_errors"
        )


def _recorded(run: Run, table: str) -> list[str]:
    return [row[0] for row in run.sql(f"select distinct recipe from {table} order by recipe").fetchall()]


def _has(recorded: Sequence[str]) -> str:
    return f"this run has {_some(recorded) if recorded else 'none'}"


def _attach(run: Run, detail: str, recipes: Sequence[str]) -> str:
    """The command that records them; what is recorded by default need not be asked for."""
    details = run.manifest.options.get("detail", (detail,))
    words = [] if detail in details else [f"--detail {','.join([*details, detail])}"]
    return " ".join(["fp8debug attach", *words, *(f"--recipe {recipe}" for recipe in recipes[:3]), "..."])


def _some(names: Sequence[str]) -> str:
    shown = list(names[:3])
    if len(names) > 3:
        return f"{', '.join(shown)} and {len(names) - 3} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
