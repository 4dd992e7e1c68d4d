"""Opening a capture: `fp8debug.attach(model)`, and what it shares with attaching to an unmodified script."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from fp8debug.config import DETAILS, CaptureOptions
from fp8debug.errors import UsageError
from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.finding import find_layers
from fp8debug.hooks.emulate.emulation import explain_nothing
from fp8debug.hooks.live_scalars import OnScalars
from fp8debug.hooks.manifest import new_manifest
from fp8debug.hooks.measure.loading import load_engine
from fp8debug.hooks.place import find_place, point_latest
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.resume import go_on
from fp8debug.hooks.say import nowhere, on_stderr
from fp8debug.hooks.selection import one_or_more
from fp8debug.hooks.session import Session
from fp8debug.rundir import RunDir


def open_session(
    plan: CapturePlan,
    *,
    command: Sequence[str],
    script: str,
    say: Callable[[str], None],
    measure_gradients: bool,
    on_scalars: OnScalars | None = None,
    scalars_every_rank: bool = False,
) -> Session:
    """Make the run directory and open a session on it; no model is attached yet.

    Raises:
        Fp8DebugError: the directory is taken or not empty, the ranks share no run id, or there is no run to resume.
    """
    options = plan.options
    place = find_place(options, script)
    engine = load_engine(options.engine)  # may refuse: before anything is made or moved
    moved = place.prepare(force=options.force)
    if moved is not None:
        say(f"fp8debug: the old run was renamed to {moved}")
    engine.warm_up()
    run_dir, resume = RunDir(place.path), None
    manifest = new_manifest(plan, command=command, place=place, engine=engine.name)
    if place.resumes:
        manifest, resume = go_on(run_dir, manifest, place.launch, place.step_asked)
    session = Session(
        plan, run_dir, manifest, engine, say, rank=place.rank, measure_gradients=measure_gradients, resume=resume,
        on_scalars=on_scalars if place.rank == 0 or scalars_every_rank else None,
    )  # fmt: skip
    session.open()
    if place.rank == 0:
        point_latest(place.path)
        say(f"fp8debug: recording to {place.path}")
    return session


def attach(
    model: nn.Module,
    *,
    layers: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    strip_prefix: str = "",
    tensors: str | Iterable[str] = ("x", "w", "dy"),
    every: int = 50,
    first: int = 0,
    steps: str | None = None,
    raw_every: int = 0,
    recipes: str | Iterable[str] = ("current", "delayed"),
    rolls: str = "microbatch",
    engine: str | None = None,
    backend: str = "auto",
    attention: bool = False,
    inference: bool = False,
    trigger: str | Iterable[str] = (),
    flight_memory: int = 64,
    detail: str | Iterable[str] = DETAILS,
    accumulation: str | Iterable[str] = ("exact",),
    probe_memory: int = 32,
    on_full: str = "block",
    max_bytes: int | str | None = None,
    plan: str | os.PathLike[str] | None = None,
    emulate: str | None = None,
    keep_bf16: str | Iterable[str] = (),
    emulate_only: str | Iterable[str] = (),
    run_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    force: bool = False,
    resume: str | os.PathLike[str] | None = None,
    resume_step: int | None = None,
    on_scalars: OnScalars | None = None,
    scalars_every_rank: bool = False,
    quiet: bool = False,
) -> Session:
    """Record the GEMM operands of `model`'s layers while it trains.

    Use it as a context manager, or call `close()`; at exit it closes itself.

    Args:
        model: any module; wrapped or not.
        layers, exclude: regexes (re.search) on the qualified names; default: every GEMM layer.
        strip_prefix: taken off the names of layers that begin with it, such as `net.`.
        tensors: of x, w, dy, y, dx, dw; m and v (states of Adam-like optimizers); key and value (of attention).
        every, first, steps: which steps are sampled; health is taken at every step.
        raw_every: dump raw values each step divisible by this.
        recipes: such as "current" or "delayed:amax_history_len=16".
        rolls: when simulated histories advance: "microbatch" or "step".
        engine: "numba" or "torch"; default: numba where it is installed.
        backend: "modules" (hooks on modules), "dispatch" (every GEMM that runs), or "auto": hooks, and dispatch for the
            weights that hooks would miss.
        attention: record the GEMMs inside attention too.
        inference: the model serves: evaluation passes are recorded, a step is one forward.
        trigger: of "nan", "spike", "amax>16x": count every step, and write the last ones when that happens.
        flight_memory: MB for those last steps.
        detail: what sampled steps take beside errors and histograms: of "channels", "blocks", "gemms"; () for nothing.
        accumulation: how measured GEMMs accumulate: of "exact", "hopper-fast", "hopper-promoted".
        probe_memory: MB of operand samples that measured GEMMs may keep from forward to backward.
        on_full: when the disk is slower than the training: "block" (the training waits) or "drop" (details of sampled
            steps are not written, then whole records; events say of which steps).
        max_bytes: most that the run may take on storage, such as "20G"; as it is used up fewer steps are sampled, then
            none, then nothing is written but events. Each rank has an equal share.
        plan: file of a fallback plan: its recipe is emulated, with its departures.
        emulate: recipe that the GEMMs of the taken layers compute with until the session is closed, as
            `fp8debug.emulate` has it; default: the plan's, or none.
        keep_bf16: regexes; layers that match any are not emulated.
        emulate_only: of "x", "w", "dy", "fprop", "dgrad", "wgrad": emulate just these.
        run_dir: directory to create, or an URL such as s3://bucket/run; default fp8debug-runs/<script>-<time>.
        force: rename a run that is already there.
        resume: run directory to go on in, as a new segment.
        resume_step: its first step there; default: what the optimizer has counted, else the next.
        on_scalars: called as on_scalars(step, scalars) in the training's thread, once a step and in order, when its
            numbers have arrived (docs/live.md lists them). When it raises it is called no more.
        scalars_every_rank: on every rank, not on rank 0 alone.

    Raises:
        UsageError: a regex that does not compile or matches nothing, exclusions that leave nothing out, an unknown
            recipe or tensor, an emulation that leaves every layer as it is, a directory in use.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"attach: got {type(model).__name__}; expected an nn.Module, wrapped or not")
    if on_scalars is not None and not callable(on_scalars):
        raise UsageError(f"on_scalars: got {on_scalars!r}; expected a function of a step and its scalars by name")
    options = CaptureOptions(
        layers=one_or_more(layers),
        exclude=one_or_more(exclude),
        tensors=_listed(tensors),
        every=every,
        first=first,
        steps=steps,
        raw_every=raw_every,
        recipes=one_or_more(recipes),
        rolls=rolls,
        engine=engine,
        backend=backend,
        attention=attention,
        inference=inference,
        trigger=_listed(trigger),
        flight_memory=flight_memory,
        detail=() if detail == "none" else _listed(detail),
        accumulation=_listed(accumulation),
        probe_memory=probe_memory,
        on_full=on_full,
        max_bytes=max_bytes,  # type: ignore[arg-type]  # checked, and made a number, with the plan
        plan=None if plan is None else os.fspath(plan),
        emulate=emulate,
        keep_bf16=one_or_more(keep_bf16),
        emulate_only=_listed(emulate_only),
        out=None if run_dir is None else os.fspath(run_dir),
        name=name,
        force=force,
        resume=None if resume is None else os.fspath(resume),
        resume_step=resume_step,
        quiet=quiet,
    )
    capture = CapturePlan.from_options(options)
    layers_there = [
        replace(layer, name=layer.name.removeprefix(strip_prefix))
        for layer in find_layers(model, backend=capture.options.backend)
    ]
    taken = [layer for layer in layers_there if capture.selection.takes(layer.name)]
    if not taken:
        raise UsageError(capture.selection.explain_no_match([layer.name for layer in layers_there]))
    if (
        no_exclusion := capture.selection.explain_no_exclusion([(x.name, x.raw_name) for x in layers_there])
    ) is not None:
        raise UsageError(no_exclusion)
    if capture.emulation is not None and (nothing := explain_nothing(capture.emulation, taken)) is not None:
        raise UsageError(nothing)
    say = nowhere if quiet else on_stderr
    script = sys.argv[0] or "python"
    session = open_session(capture, command=[Path(a).name if i == 0 else a for i, a in enumerate(sys.argv)],
                           script=script, say=say, measure_gradients=False, on_scalars=on_scalars,
                           scalars_every_rank=scalars_every_rank)  # fmt: skip
    found = session.attach_layers(model, layers_there)
    session.forget_graphs()
    if session.rank == 0:
        say(matched_line(found, capture))
        if session.emulation is not None:
            say(session.emulation.summary())
    return session


def matched_line(found: Sequence[FoundLayer], plan: CapturePlan) -> str:
    """`fp8debug: matched 24 of 25 GEMM layers`, and the patterns that matched nothing."""
    names = [layer.name for layer in found]
    line = f"fp8debug: matched {sum(map(plan.selection.takes, names))} of {len(names)} GEMM layers"
    unmatched = plan.selection.unmatched(names)
    quoted = ", ".join(f"'{pattern}'" for pattern in unmatched)
    line += f"; nothing matched {quoted}" if unmatched else ""
    return "; ".join([line, *plan.unmatched_exclusions([(layer.name, layer.raw_name) for layer in found])])


def _listed(given: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(given.split(",")) if isinstance(given, str) else tuple(given)
