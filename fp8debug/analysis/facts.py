"""What a run was and what of it could be judged: the head of every report."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

from fp8debug.analysis.liveness import liveness
from fp8debug.analysis.run import Run
from fp8debug.rundir import LayerInfo, RunDir


@dataclass(frozen=True, slots=True)
class Course:
    """A number that the training reported at every step: first and last value, first step without a finite one."""

    first: float | None = None
    last: float | None = None
    first_nonfinite_step: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was run. Steps and loss are of the whole run, whatever part of it the report looks at."""

    path: str
    name: str | None
    command: str
    created_at: str
    status: str
    """closed | running | killed: it says running but no process writes it | failed | interrupted | disabled"""
    status_reason: str | None
    dead_ranks: tuple[int, ...]
    """Ranks whose process is gone while others still write."""
    world_size: int
    versions: dict[str, str]
    git_commit: str | None
    n_segments: int
    n_steps: int
    first_step: int | None
    last_step: int | None
    n_sampled_steps: int
    n_skipped_steps: int
    n_layers: int
    n_layers_matched: int
    tensors: tuple[str, ...]
    recipes: tuple[str, ...]
    inference: bool
    """The run serves: its evaluation passes are what is judged, and a step is one forward."""
    emulated: dict[str, int]
    """Recipes that layers computed with, such as `current, only dy`, and in how many of them."""
    loss: Course
    grad_norm: Course


@dataclass(frozen=True, slots=True)
class Health:
    """What the recorded values themselves look like, before any cast."""

    n_operands: int
    n_operands_sampled: int
    n_operands_all_zero: int
    n_operands_approx: int
    """Operands in FP32 or FP64 whose histograms, and what follows from them, are of BF16-rounded values."""
    n_nan: int
    n_inf: int
    n_operands_nonfinite: int
    first_nonfinite_step: int | None
    first_nonfinite_layer: str | None
    first_nonfinite_tensor: str | None


_STEPS = """
with per_step as (
    select
        step, avg(loss) as loss, avg(grad_norm) as grad_norm, bool_or(sampled) as sampled, bool_or(skipped) as skipped,
        any_value(loss_source) as loss_source, any_value(grad_norm_source) as grad_norm_source
    from steps
    group by step
)
select
    count(*), min(step), max(step), count(*) filter (sampled), count(*) filter (skipped),
    arg_min(loss, step), arg_max(loss, step), min(step) filter (not isfinite(loss)), any_value(loss_source),
    arg_min(grad_norm, step), arg_max(grad_norm, step), min(step) filter (not isfinite(grad_norm)),
    any_value(grad_norm_source)
from per_step
"""

_HEALTH = """
with operand as (
    select
        layer, tensor, bool_or(sampled) as sampled, max(amax) = 0 and sum(n) > 0 as all_zero,
        bool_or(approx is not null) as approx,
        sum(coalesce(n_nan, 0))::bigint as n_nan,
        sum(coalesce(n_posinf, 0) + coalesce(n_neginf, 0))::bigint as n_inf,
        min((step, seq)) filter (n_nan > 0 or n_posinf > 0 or n_neginf > 0) as first_bad
    from tensors
    group by layer, tensor
)
select
    count(*), count(*) filter (sampled), count(*) filter (all_zero and n_nan + n_inf = 0),
    count(*) filter (approx),
    coalesce(sum(n_nan), 0)::bigint, coalesce(sum(n_inf), 0)::bigint, count(*) filter (n_nan + n_inf > 0),
    min(first_bad)[1], arg_min(layer, first_bad), arg_min(tensor, first_bad)
from operand
"""


def run_facts(run: Run) -> RunFacts:
    """Read what was run from the manifest, the locks and the table `steps`."""
    manifest, layers = run.manifest, _layers(run)
    row = run.sql(_STEPS).fetchall()[0]
    alive = liveness(RunDir(run.path), manifest)
    return RunFacts(
        path=str(run.path),
        name=manifest.name,
        command=shlex.join(manifest.command),
        created_at=manifest.created_at,
        status=alive.status,
        status_reason=manifest.status_reason,
        dead_ranks=alive.dead_ranks,
        world_size=manifest.world_size,
        versions=dict(manifest.versions),
        git_commit=manifest.git_commit,
        n_segments=max(1, len(manifest.segments)),
        n_steps=row[0],
        first_step=row[1],
        last_step=row[2],
        n_sampled_steps=row[3],
        n_skipped_steps=row[4],
        n_layers=len(layers),
        n_layers_matched=sum(layer.matched for layer in layers),
        tensors=tuple(manifest.tensors),
        recipes=tuple(manifest.recipes),
        inference=bool(manifest.options.get("inference")),
        emulated=dict(Counter(layer.emulated for layer in layers if layer.emulated is not None)),
        loss=Course(*row[5:9]),
        grad_norm=Course(*row[9:13]),
    )


def _layers(run: Run) -> list[LayerInfo]:
    """The GEMM layers, without stacks of experts of which only the parts, such as `experts.w[3]`, ran."""
    layers = [layer.info for layer in run.layers]
    parted = {layer.name.rpartition("[")[0] for layer in layers if layer.name.endswith("]")}
    if parted:
        parted -= {name for (name,) in run.sql("select distinct layer from records").fetchall()}
    return [layer for layer in layers if layer.name not in parted]


def health(run: Run) -> Health:
    """Count the operands and what is not finite in them."""
    return Health(*run.sql(_HEALTH).fetchall()[0])
