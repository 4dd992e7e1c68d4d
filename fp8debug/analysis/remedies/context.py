"""What a search looks up once: results of GEMMs, blocks, and what is wrong under the recorded recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.remedies.measured import Measured
from fp8debug.analysis.remedies.recorded import GemmResult, attach_command, blocks, gemms, recorded_recipes
from fp8debug.analysis.run import Run
from fp8debug.gemms import GEMMS, gemms_reading
from fp8debug.recipes import BlockRecipe, parse_recipe

BLOCK_KINDS = ("block", "mxfp8")
"""Block recipes that are tried, in this order."""


@dataclass(frozen=True, slots=True)
class Context:
    """Facts about the layers of a search."""

    thresholds: dict[str, float]
    commands: dict[str, str]
    """By kind of block recipe, what would record it."""
    is_cut: bool
    """Whether the run was opened from a later step on: then its histories lack what was before."""
    block_recipes: tuple[str, ...]
    """Those recorded."""
    blocks: dict[tuple[str, str, str, str], Measured]
    gemms: dict[tuple[str, str, str], GemmResult]
    wrong: frozenset[tuple[str, str, str]]
    """(recipe, layer, tensor): candidates under a recorded per-tensor recipe."""
    sqnr: dict[tuple[str, str, str], float]
    """(recipe, layer, tensor) -> median SQNR, dB, under recorded per-tensor recipes."""

    def bad_gemms(self, recipe: str, layer: str, tensor: str) -> dict[str, GemmResult]:
        """GEMMs that read the operand, measured under `recipe`, with a result outside the rules.

        Not one whose other operand is outside the rules by itself: that one needs its own remedy.
        """
        return {
            gemm: result
            for gemm in gemms_reading(tensor)
            if (result := self.gemms.get((recipe, layer, gemm))) is not None
            and result.count.fails(self.thresholds)
            and not self._is_wrong(recipe, layer, other_operand(gemm, tensor), gemm)
        }

    def _is_wrong(self, recipe: str, layer: str, tensor: str, gemm: str) -> bool:
        in_blocks = self.blocks.get((recipe, layer, tensor, gemm))
        return (recipe, layer, tensor) in self.wrong or (
            in_blocks is not None and in_blocks.sampled.fails(self.thresholds)
        )


def gather(run: Run, layers: Sequence[str]) -> Context:
    """Look everything up."""
    block_recipes = tuple(
        text for text in recorded_recipes(run, "blocks") if isinstance(parse_recipe(text), BlockRecipe)
    )
    wrong = run.sql("select recipe, layer, tensor from operands where level = 'hit' and is_persistent").fetchall()
    rows = run.sql(
        """
        select recipe, layer, tensor, median(sqnr_db)
        from sampled_evidence
        where not alternate and sqnr_db is not null and layer in (select unnest($layers::varchar[]))
        group by recipe, layer, tensor
        """,
        layers=list(layers),
    ).fetchall()
    return Context(
        run.thresholds,
        {kind: attach_command(run, kind) for kind in BLOCK_KINDS},
        _is_cut(run),
        block_recipes,
        blocks(run, layers, block_recipes),
        gemms(run, layers, recorded_recipes(run, "gemms")),
        frozenset(wrong),
        {(recipe, layer, tensor): sqnr_db for recipe, layer, tensor, sqnr_db in rows},
    )


def _is_cut(run: Run) -> bool:
    query = "select count(*) from duckdb_views() where schema_name = 'stored' and view_name = 'all_tensors'"
    if not run.prepare("").execute(query).fetchall()[0][0]:
        return False
    first = "select (select min(step) from stored.tensors) > (select min(step) from stored.all_tensors)"
    return bool(run.prepare("").execute(first).fetchall()[0][0])


def other_operand(gemm: str, tensor: str) -> str:
    """The operand beside `tensor`."""
    return next(name for name, _ in GEMMS[gemm] if name != tensor)
