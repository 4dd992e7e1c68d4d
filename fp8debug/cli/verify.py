"""`fp8debug verify`: prove by emulated trainings that a fallback plan helps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer


def verify(
    ctx: typer.Context,
    script: Annotated[str, typer.Argument(help="What python would run.")],
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's own; {seed} in them becomes the seed of each run.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")] = False,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="FILE", help="The plan, as `fp8debug plan` writes it.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="RECIPE", help="Emulate this recipe. [the plan's]")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Seed of all three runs; a script that seeds itself wins.")
    ] = 0,
    seeds: Annotated[
        int,
        typer.Option("--seeds", metavar="N", min=1, help="BF16 runs in all, with one seed each, to know the noise."),
    ] = 1,
    min_recovery: Annotated[
        str, typer.Option("--min-recovery", metavar="SHARE", help="Part of the gap that the plan must take away.")
    ] = "80%",
    every: Annotated[
        int, typer.Option("--every", metavar="N", min=1, help="Take errors in every Nth step; few cost little.")
    ] = 20,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Folder of the runs. [fp8debug-runs/verify-SCRIPT-TIME]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Rename a folder that is there already.")] = False,
    inference: Annotated[
        bool, typer.Option("--inference", help="Compare outputs on one batch instead; SCRIPT may be a model.")
    ] = False,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="FILE", help="The batch for --inference. [a script's first]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show what the runs print.")] = False,
) -> None:
    """Prove by emulated trainings that a fallback plan helps.

    The script is run three times from one seed: in BF16, with the recipe emulated, and with the recipe and the plan.
    Their losses, gradient norms and findings are compared. Options stand before SCRIPT or directly after it; from the
    first other word, or from --, all belongs to the script.

    Exit codes: 0 the plan recovers the loss, or there is no measurable effect on it; 3 it does not recover enough;
    1 it could not be done, such as a script that fails; 2 wrong usage.
    """
    from fp8debug.errors import UsageError

    if inference:
        from fp8debug.cli.inference import inference_check

        raise typer.Exit(inference_check(script, batch, recipe, plan=plan, as_json=as_json, arguments=args or ()))
    if batch is not None:
        raise UsageError("--batch is the batch of --inference, which is not given")
    if plan is None:
        raise UsageError("verify takes --plan FILE; `fp8debug plan RUN_DIR -o FILE` makes one")

    def launch() -> Callable[[], int]:
        from pathlib import Path

        from fp8debug.cli.verification import Request, Trainings, check_script, check_settings, parse_share
        from fp8debug.plans import read_plan
        from fp8debug.recipes import parse_recipe

        check_script(script, module=module)
        check_settings()
        request = Request(
            script=script,
            arguments=tuple(args or ()),
            is_module=module,
            plan=read_plan(Path(plan)),
            plan_file=plan,
            recipe=None if recipe is None else parse_recipe(recipe).text,
            seed=seed,
            n_seeds=seeds,
            every=every,
            min_recovery=parse_share(min_recovery),
            quiet=quiet,
        )
        trainings = Trainings(request, out, force=force)
        return lambda: _run(trainings, as_json=as_json)

    # Called by main() outside the parser, which would turn a KeyboardInterrupt into an exit code of its own.
    ctx.obj.append(launch)


def _run(trainings: object, *, as_json: bool) -> int:
    from fp8debug.cli.exit_codes import ExitCode
    from fp8debug.cli.render.stream import looks_of, tell, write_stdout
    from fp8debug.cli.render.verification import verification_json, verification_text
    from fp8debug.cli.verification import INTERRUPTED, Trainings
    from fp8debug.errors import Fp8DebugError

    assert isinstance(trainings, Trainings)
    try:
        verified = trainings.run()
    except Fp8DebugError as error:
        tell(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        tell(f"interrupted; what has run is in {trainings.folder}")
        return INTERRUPTED
    if as_json:
        sys.stdout.write(verification_json(verified))
    else:
        write_stdout(verification_text(verified, looks_of(sys.stdout)))
    if verified.judgement.verdict == "unknown":
        return ExitCode.FAILED
    return ExitCode.DONE if verified.judgement.is_helpful else ExitCode.FAIL_ON
