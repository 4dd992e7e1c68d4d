"""A change and what was measured under it, made a trial: does it bring the operand and its GEMMs inside the rules?"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fp8debug.analysis.remedies.affected import Affected
from fp8debug.analysis.remedies.context import Context, other_operand
from fp8debug.analysis.remedies.measured import Count, Measured
from fp8debug.analysis.remedies.proposals import Proposal
from fp8debug.analysis.remedies.recorded import GemmResult
from fp8debug.analysis.remedies.remedy import Trial
from fp8debug.gemms import gemms_reading

_ROUNDING_GAIN = 1 / 17
"""Rounding in E4M3 moves the gain by less: where single steps are beyond it and the median is not, it is no reason."""


def judge(
    entry: Affected, proposal: Proposal, measured: Measured | None, gaps: Count | None, context: Context
) -> Trial:
    """The trial of a per-tensor change.

    Args:
        entry: the operand as it is now.
        proposal: the change.
        measured: the operand under it; None: no sampled record is beyond the start of the history.
        gaps: steps in which its scale is too large, unsampled ones included; None: it has no history.
        context: what was recorded of the layer.
    """
    recipe = proposal.recipe.text
    if measured is None or not measured.sampled.n_observed:
        return Trial(proposal.kind, recipe, "unknown", note="no sampled step is beyond the start of its history")
    if measured.sampled.fails(context.thresholds):
        return trial_of(proposal.kind, recipe, "not_enough", measured, shortfall(measured))
    if gaps is not None and gaps.fails(context.thresholds):
        note = f"its scale is too large in {gaps.n_hit} of {gaps.n_observed} steps, unsampled ones included"
        return trial_of(proposal.kind, recipe, "not_enough", measured, note)
    bad = context.bad_gemms(recipe, entry.layer, entry.tensor)
    if bad:
        return trial_of(proposal.kind, recipe, "not_enough", measured, bad_results(bad))
    unsupported = _two_e5m2(entry, proposal)
    if unsupported:
        note = f"{unsupported} would multiply two E5M2 operands, which cuBLAS does not"
        return trial_of(proposal.kind, recipe, "not_enough", measured, note)
    return trial_of(proposal.kind, recipe, "fixes", measured, _results(entry, recipe, measured, context))


def _two_e5m2(entry: Affected, proposal: Proposal) -> str | None:
    """The GEMM whose operands would both be E5M2: cuBLASLt has no such kernel and `torch._scaled_mm` refuses."""
    if proposal.recipe.formats_for(entry.tensor)[0][0].name != "E5M2":
        return None
    for gemm in gemms_reading(entry.tensor):
        if entry.recipe.formats_for(other_operand(gemm, entry.tensor))[0][0].name == "E5M2":
            return gemm
    return None


def trial_of(
    kind: str,
    change: str,
    outcome: str,
    measured: Measured | None,
    note: str,
    *,
    gemm: str | None = None,
    rest: str | None = None,
) -> Trial:
    """A trial with the numbers of `measured`."""
    seen = measured or Measured(Count())
    return Trial(
        kind, change, outcome, seen.sqnr_db, seen.underflow, seen.overflow, seen.scale_gap_bits, seen.gain, note,
        seen.sqnr_low_db, gemm, rest,
    )  # fmt: skip


def shortfall(measured: Measured) -> str:
    """Which criteria are still met, with their numbers."""
    parts = []
    if "gap" in measured.criteria and (measured.scale_gap_bits or 0) > 0:
        parts.append(f"scale {measured.scale_gap_bits:.1f} bits too large")
    if "underflow" in measured.criteria and measured.underflow is not None:
        small = f", small values keep {measured.sqnr_low_db:.1f} dB" if measured.sqnr_low_db is not None else ""
        parts.append(f"{share(measured.underflow)} become zero{small}")
    if "gain" in measured.criteria and measured.gain is not None and abs(measured.gain - 1) > _ROUNDING_GAIN:
        parts.append(f"values come back times {measured.gain:.3g}")
    if "sqnr" in measured.criteria and measured.sqnr_db is not None:
        parts.append(f"SQNR {measured.sqnr_db:.1f} dB")
    hit = measured.sampled
    return "; ".join(parts) or f"outside the rules in {hit.n_hit} of {hit.n_observed} steps"


def bad_results(bad: Mapping[str, GemmResult]) -> str:
    """Results of GEMMs that are outside the rules."""
    return "; ".join(
        f"result of {gemm} keeps {_db(result.product_sqnr_db)}, should be above {result.floor_db:.1f}"
        for gemm, result in sorted(bad.items())
    )


def measured_results(results: Mapping[str, GemmResult]) -> str:
    """Results of GEMMs that are inside."""
    known = [f"{gemm} {_db(r.product_sqnr_db)}" for gemm, r in sorted(results.items()) if r.product_sqnr_db is not None]
    return f"results measured: {', '.join(known)}" if known else ""


def share(part: float) -> str:
    """A share as text: 0.4 %, 57 %."""
    return f"{100 * part:.0f} %" if part >= 0.095 or part == 0 else f"{100 * part:.2g} %"


def _results(entry: Affected, recipe: str, measured: Measured, context: Context) -> str:
    gemms = gemms_reading(entry.tensor)
    seen = {gemm: r for gemm in gemms if (r := context.gemms.get((recipe, entry.layer, gemm))) is not None}
    if seen:
        return measured_results(seen)
    estimates = []
    for gemm in gemms:
        other = context.sqnr.get((entry.recipe.text, entry.layer, other_operand(gemm, entry.tensor)))
        if other is not None and measured.sqnr_db is not None:
            noise = math.pow(10, -measured.sqnr_db / 10) + math.pow(10, -other / 10)
            estimates.append(f"{gemm} {-10 * math.log10(noise):.1f} dB")
    return f"results estimated from the operands: {', '.join(estimates)}" if estimates else ""


def _db(number: float | None) -> str:
    return "nothing" if number is None else f"{number:.1f} dB"
