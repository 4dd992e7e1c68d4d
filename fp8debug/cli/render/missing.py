"""What is missing for a verdict, and how to get it."""

from __future__ import annotations

from fp8debug.analysis.report import Report
from fp8debug.cli.render.tables import escape
from fp8debug.cli.render.wording import count, listed


def what_is_missing(report: Report) -> str:
    """Why operands could not be judged, in a sentence or two."""
    if report.given is not None:
        return (
            "The run was imported from debug logs of Transformer Engine. These have statistics with four decimals, but "
            "neither the values nor the sums that errors follow from, so it cannot be told what FP8 costs an operand. "
            "The rules that read logged numbers were asked. To judge operands record a few steps: `fp8debug attach "
            "--first 20 ...`."
        )
    if not report.health.n_operands_sampled:
        return (
            "No tensor was sampled, so nothing is known about its error in FP8. Only the scale gaps and the health of "
            "the tensors were recorded. Sample more: `fp8debug attach --every 1 ...` or `--first 20`."
        )
    if not report.judged:
        recipes = listed([escape(recipe) for recipe in report.scope.recipes or report.run.recipes])
        return (
            "The rules judge recipes with one scale a tensor, and there are no error sums of any: recorded was "
            f"{recipes or 'none'}. What block recipes do to the tensors, `fp8debug whatif` shows; for a verdict record "
            "`--recipe current` as well."
        )
    if not report.n_judged_steps and any(entry.n_without_limits for entry in report.judged):
        return (
            "The rules have limits for E4M3 and E5M2 alone, and nothing recorded in these could be judged. What other "
            "formats do to the tensors, `fp8debug whatif` shows."
        )
    needed = int(report.thresholds["min_steps_short"])
    return (
        f"{count(report.n_judged_steps, 'sampled step')} could be judged, a verdict takes at least {needed}. Sample "
        "more: train longer, or record with a smaller `--every`."
    )
