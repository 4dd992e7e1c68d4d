"""What `fp8debug plan` does: make a plan and write it, or hold one against a model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fp8debug.errors import UsageError, nearest
from fp8debug.rundir import find_run

if TYPE_CHECKING:
    from fp8debug.analysis.plans import Names
    from fp8debug.analysis.remedies import Fallback
    from fp8debug.analysis.run import Run
    from fp8debug.cli.render.plan import Planned
    from fp8debug.plans import Plan


@dataclass(frozen=True, slots=True)
class Wish:
    """The plan that the user asks for."""

    target: str
    recipe: str | None
    target_sqnr_db: float | None
    budget: str | None
    layers_only: bool
    names: str
    config: str | None


def make_plan(run_dir: str | None, wish: Wish, output: str | None, *, force: bool, as_json: bool) -> None:
    """Plan for a run, write the plan, and say on standard error what it does.

    Raises:
        UsageError: an unknown target, recipe or share, or a file that must not be written.
        Fp8DebugError: no such run, or nothing is known of its GEMMs.
    """
    from fp8debug.analysis.run import open_run
    from fp8debug.cli.progress import progress
    from fp8debug.cli.render.plan import plan_json, plan_summary
    from fp8debug.cli.rule_choice import rule_choice
    from fp8debug.cli.sink import Sink

    _check_words(wish)
    found = find_run(run_dir)
    sink = Sink.from_options(None, output, force=force, outside=found)
    chosen = rule_choice(wish.config)
    with progress("planning"), open_run(found.path, thresholds=chosen.thresholds) as run:
        planned = planned_for(run, wish)
    if output is not None:
        sink.write_lines(planned.export.text.removesuffix("\n").split("\n"))
    if as_json:
        sys.stdout.write(plan_json(planned, output))
    elif output is None:
        sink.write_lines(planned.export.text.removesuffix("\n").split("\n"))
    sys.stderr.write(plan_summary(planned, output))


def planned_for(run: Run, wish: Wish) -> Planned:
    """Make the plan and write it for its target.

    Raises:
        Fp8DebugError: nothing is known to plan from.
    """
    from fp8debug.analysis.plans import export, flops_kept, whole_layers, without_idle
    from fp8debug.analysis.remedies.noise import gemm_flops
    from fp8debug.cli.render.plan import Planned

    made, fallback = _made(run, wish)
    made = whole_layers(made) if wish.layers_only else without_idle(made)
    flops = gemm_flops(run)
    made = replace(made, flops_kept=flops_kept(made, flops))
    layers = [layer.info for layer in run.layers]
    written = export(made, wish.target, layers, _names(wish.names))
    kept = flops_kept(written.plan, flops)
    return Planned(wish.target, str(run.path), made, written, kept, len(layers), fallback, _notice(run, made, fallback))


def _notice(run: Run, made: Plan, fallback: Fallback | None) -> str | None:
    """Why an empty plan is no proof of health; None where it is, or where there is something to change."""
    from fp8debug.analysis.judged import judged_operands

    if run.notice is not None or made.entries or fallback is not None:
        return run.notice
    n_steps = max((operand.n_steps for operand in judged_operands(run)), default=0)
    needed = int(run.thresholds["min_steps_short"])
    if n_steps >= needed:
        return None
    return f"not enough evidence: sampled steps that could be judged: {n_steps}, a verdict takes at least {needed}"


def _made(run: Run, wish: Wish) -> tuple[Plan, Fallback | None]:
    from fp8debug.analysis.remedies import fallback, plan_of, search

    if wish.target_sqnr_db is None and wish.budget is None:
        made = plan_of(run, search(run, recipe=wish.recipe))
        return (made if made.entries or wish.recipe is None else replace(made, recipe=wish.recipe)), None
    share = None if wish.budget is None else parse_share(wish.budget)
    found = fallback(run, wish.target_sqnr_db, share, recipe=wish.recipe)
    return plan_of(run, (), found), found


def parse_share(text: str) -> float:
    """`5%` or `0.05`.

    Raises:
        UsageError: neither.
    """
    word = text.strip()
    try:
        share = float(word[:-1]) / 100 if word.endswith("%") else float(word)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"--budget: got {text!r}; expected a share of the GEMM FLOPs, such as 5% or 0.05")
    return share


def check_plan(file: str, source: str | None, *, names: str, as_json: bool) -> bool:
    """Hold a plan file against a run or a model and print the answer; whether every entry does what it was meant for.

    Raises:
        UsageError: no plan, or no model.
        Fp8DebugError: no such run.
    """
    from fp8debug.analysis.plans.check import check_file
    from fp8debug.cli.layer_source import layers_of
    from fp8debug.cli.render.plan import check_json, render_check
    from fp8debug.cli.render.stream import looks_of, write_stdout

    title, layers = layers_of(source)
    found = check_file(Path(file), layers, _names(names))
    if as_json:
        sys.stdout.write(check_json(found, file, title))
    else:
        write_stdout(render_check(found, looks_of(sys.stdout), file=file, source=title))
    return found.is_clean


def _check_words(wish: Wish) -> None:
    from fp8debug.analysis.plans import TARGETS
    from fp8debug.recipes import BF16, parse_recipe

    if wish.target not in TARGETS:
        near = nearest(wish.target, TARGETS) or list(TARGETS)
        raise UsageError(f"--for {wish.target!r}: did you mean {' or '.join(near)}? Known: {', '.join(TARGETS)}")
    if wish.recipe is not None and isinstance(parse_recipe(wish.recipe), BF16):
        raise UsageError(
            f"--recipe {wish.recipe}: there is nothing to take out of BF16; expected a recipe in low precision"
        )
    _names(wish.names)


def _names(word: str) -> Names:
    if word == "te":
        return "te"
    if word == "model":
        return "model"
    raise UsageError(f"--names {word!r}: expected te (as Transformer Engine infers names) or model (as in the run)")
