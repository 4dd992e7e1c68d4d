"""`fp8debug attach`: run a training script as `python` would, and record its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer


def attach(
    ctx: typer.Context,
    script: Annotated[str, typer.Argument(help="What python would run.")],
    args: Annotated[list[str] | None, typer.Argument(help="The script's own, whatever they look like.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")] = False,
    layers: Annotated[
        list[str] | None,
        typer.Option("--layers", metavar="REGEX", help="Layers to take (re.search on the name); repeatable. [all]"),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="REGEX", help="Layers to leave out; repeatable.")
    ] = None,
    tensors: Annotated[
        str | None,
        typer.Option("--tensors", metavar="LIST", help="What to record, of x,w,dy,y,dx,dw,m,v,key,value. [x,w,dy]"),
    ] = None,
    every: Annotated[
        int | None, typer.Option("--every", metavar="N", help="Take errors and histograms in every Nth step. [50]")
    ] = None,
    first: Annotated[
        int | None, typer.Option("--first", metavar="N", help="Take them in each of the first N steps too. [0]")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="RANGES", help="Take them in these steps instead, such as 0-9,100,200-."),
    ] = None,
    raw_every: Annotated[
        int | None, typer.Option("--raw-every", metavar="M", help="Dump raw values in every Mth step. [0: never]")
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="Scaling to simulate, such as delayed:amax_history_len=16; repeatable. [current and delayed]",
        ),
    ] = None,
    rolls: Annotated[
        str | None,
        typer.Option(
            "--rolls", metavar="WHEN", help="When a delayed history advances: microbatch or step. [microbatch]"
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Run directory, or an URL such as s3://bucket/run. [FP8DEBUG_RUN_DIR, else fp8debug-runs/SCRIPT-TIME]",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="A name for the run.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Rename a run that is in the run directory already.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="DIR", help="Go on in this run, as a new segment of it.")
    ] = None,
    resume_step: Annotated[
        int | None,
        typer.Option(
            "--resume-step", metavar="N", help="Its first step there. [the optimizer's own count, else the next]"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Seed torch, numpy and random before the script runs. [left alone]"),
    ] = None,
    list_layers: Annotated[
        bool, typer.Option("--list-layers", help="Print the layers and stop before the first step.")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="What counts: numba or torch. [numba where it is installed]"),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="NAME",
            help="How operands are reached: auto, modules (hooks) or dispatch (every GEMM that runs). [auto]",
        ),
    ] = None,
    attention: Annotated[bool, typer.Option("--attention", help="Record the GEMMs inside attention too.")] = False,
    inference: Annotated[
        bool, typer.Option("--inference", help="The script serves: record evaluation passes, a step is one forward.")
    ] = False,
    trigger: Annotated[
        str | None,
        typer.Option(
            "--trigger",
            metavar="LIST",
            help="Count every step, and keep the last ones when one of nan,spike,amax>16x happens. [none]",
        ),
    ] = None,
    flight_memory: Annotated[
        int | None,
        typer.Option("--flight-memory", metavar="MB", help="Memory for steps that --trigger keeps. [64]"),
    ] = None,
    detail: Annotated[
        str | None,
        typer.Option(
            "--detail",
            metavar="LIST",
            help="What sampled steps take beside errors and histograms, of channels,blocks,gemms, or none. [all three]",
        ),
    ] = None,
    accumulation: Annotated[
        str | None,
        typer.Option(
            "--accumulation",
            metavar="LIST",
            help="How measured GEMMs accumulate, of exact,hopper-fast,hopper-promoted. [exact]",
        ),
    ] = None,
    probe_memory: Annotated[
        int | None,
        typer.Option("--probe-memory", metavar="MB", help="Most memory of operands kept for measured GEMMs. [32]"),
    ] = None,
    on_full: Annotated[
        str | None,
        typer.Option(
            "--on-full",
            metavar="WHAT",
            help="When the disk is slower than the training: block (it waits) or drop (details go first). [block]",
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            help="Most that the run may take on disk, such as 20G: fewer steps are sampled as it is used. [no limit]",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="FILE", help="Emulate a fallback plan: its recipe, with its departures."),
    ] = None,
    emulate: Annotated[
        str | None,
        typer.Option("--emulate", metavar="RECIPE", help="Train as if in FP8: the GEMMs compute with this recipe."),
    ] = None,
    keep_bf16: Annotated[
        list[str] | None,
        typer.Option("--keep-bf16", metavar="REGEX", help="Layers that --emulate leaves as they are; repeatable."),
    ] = None,
    emulate_only: Annotated[
        str | None,
        typer.Option(
            "--emulate-only", metavar="LIST", help="Operands x,w,dy and GEMMs fprop,dgrad,wgrad to emulate. [all]"
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="TOML file of these options. [pyproject.toml: tool.fp8debug]"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Run a training script and record its tensors.

    A launcher's command is run so that every rank is recorded: fp8debug attach -- torchrun --nproc-per-node 2 train.py.

    The script needs no change: it sees its own arguments, standard output and exit code as if it ran directly. An
    option that is not given is taken from its environment variable, such as FP8DEBUG_RAW_EVERY, then from the
    configuration file, then from the default in brackets.
    """
    given = {
        "layers": layers,
        "exclude": exclude,
        "tensors": tensors,
        "every": every,
        "first": first,
        "steps": steps,
        "raw_every": raw_every,
        "recipes": recipe,
        "rolls": rolls,
        "out": out,
        "name": name,
        "force": force or None,
        "resume": resume,
        "resume_step": resume_step,
        "seed": seed,
        "list_layers": list_layers or None,
        "engine": engine,
        "backend": backend,
        "attention": attention or None,
        "inference": inference or None,
        "trigger": trigger,
        "flight_memory": flight_memory,
        "detail": detail,
        "accumulation": accumulation,
        "probe_memory": probe_memory,
        "on_full": on_full,
        "max_bytes": max_bytes,
        "plan": plan,
        "emulate": emulate,
        "keep_bf16": keep_bf16,
        "emulate_only": emulate_only,
        "quiet": quiet or None,
    }

    def launch() -> Callable[[], int]:
        from fp8debug.cli import launcher
        from fp8debug.cli.targets import find_target
        from fp8debug.settings import load_options

        options = load_options(given, config_file=config)
        words = [script, *(args or ())]
        if launcher.is_launcher_module(script) if module else launcher.is_launcher(script):
            from fp8debug.cli.launch import LaunchedCommand

            command = launcher.of_module(script, words[1:]) if module else launcher.under_attach(words)
            title = launcher.script_of(command)
            return LaunchedCommand(command, options, given, config_file=config, title=title).start()
        if not module and (problem := launcher.why_no_script(script)) is not None:
            raise problem
        target = find_target(script, module=module)
        from fp8debug.cli.runner import load, run
        from fp8debug.cli.spawned import WatchedFunction
        from fp8debug.cli.watched import Watch  # torch: only once everything cheap is in order

        program = Watch(lambda: run(load(target, args or ())), target.title, options, watched_function=WatchedFunction)
        return program.start()

    # Called by main() outside the parser, which would turn a KeyboardInterrupt of the script into an exit code.
    ctx.obj.append(launch)
