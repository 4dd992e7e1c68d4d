"""The newest numbers of a run as OpenMetrics text, for Prometheus to scrape or the node exporter to pick up.

Written so that readers of the older Prometheus text format take it too: no timestamps, and gauges where OpenMetrics
has types of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fp8debug.analysis.export.narrowing import Narrowing
from fp8debug.analysis.export.rows import nothing_selected
from fp8debug.analysis.export.scalars import Operand
from fp8debug.analysis.liveness import liveness
from fp8debug.analysis.run import Run
from fp8debug.rundir import RunDir

Sample = tuple[Mapping[str, str], float | None]
"""Labels and value; None: not known, and left out."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its samples differ in their labels."""

    name: str
    kind: str
    """gauge | counter"""
    help: str
    unit: str = ""
    """Last word of the name."""

    def lines(self, samples: Iterable[Sample]) -> Iterator[str]:
        """Its description and samples, or nothing where no value is known."""
        suffix = "_total" if self.kind == "counter" else ""
        written = [
            f"{self.name}{suffix}{_labels(labels)} {_number(value)}" for labels, value in samples if value is not None
        ]
        if not written:
            return
        yield f"# HELP {self.name} {_escaped(self.help)}"
        yield f"# TYPE {self.name} {self.kind}"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield from written


RUN_INFO = Family("fp8debug_run_info", "gauge", "Always 1; the labels say which run this is.")
OF_TRAINING = {
    "step": Family("fp8debug_step", "gauge", "Newest recorded step."),
    "started": Family(
        "fp8debug_step_started_timestamp_seconds", "gauge", "When the newest step began, in Unix time.", "seconds"
    ),
    "loss": Family("fp8debug_loss", "gauge", "Newest loss that the training reported."),
    "grad_norm": Family("fp8debug_grad_norm", "gauge", "Newest gradient norm before clipping."),
    "lr": Family("fp8debug_learning_rate", "gauge", "Newest learning rate of the first parameter group."),
}
OF_OPERANDS = {
    "amax": Family("fp8debug_amax", "gauge", "Largest magnitude in the operand's newest step."),
    "underflow": Family(
        "fp8debug_underflow_ratio",
        "gauge",
        "Share of the non-zero values that become zero, in the operand's newest sampled step.",
        "ratio",
    ),
    "overflow": Family(
        "fp8debug_overflow_ratio",
        "gauge",
        "Share of the elements beyond the format's largest value, in the operand's newest sampled step.",
        "ratio",
    ),
    "sqnr_db": Family(
        "fp8debug_sqnr_decibels",
        "gauge",
        "Signal to quantisation noise in the operand's newest sampled step; none where nothing was lost.",
        "decibels",
    ),
    "scale_gap_bits": Family(
        "fp8debug_scale_gap_bits",
        "gauge",
        "log2 of the scale over that of current scaling, in the operand's newest step: above 0 clips.",
        "bits",
    ),
    "nonfinite": Family(
        "fp8debug_nonfinite_elements", "counter", "NaN and infinite elements in all recorded steps.", "elements"
    ),
}
EVENTS = Family("fp8debug_events", "counter", "What went wrong or was missing, by kind.")


def openmetrics_lines(run: Run, narrowing: Narrowing | None = None) -> Iterator[str]:
    """The exposition, a line at a time without its end; the last is `# EOF`.

    Raises:
        UsageError: something is asked for that was not recorded.
        Fp8DebugError: nothing was recorded.
    """
    wanted = narrowing or Narrowing()
    training, operands = _training(run, wanted), _operands(run, wanted)
    if training["step"] is None and not operands:
        raise nothing_selected(run, narrowing=wanted)
    status = liveness(RunDir(run.path), run.manifest).status
    yield from RUN_INFO.lines([({"run_id": run.manifest.run_id, "status": status}, 1.0)])
    for metric, family in OF_TRAINING.items():
        yield from family.lines([({}, training[metric])])
    for metric, family in OF_OPERANDS.items():
        yield from family.lines((_labels_of(operand), values[metric]) for operand, values in operands)
    yield from EVENTS.lines(
        ({"kind": kind}, n)
        for kind, n in run.sql("select kind, count(*) from events group by all order by all").fetchall()
    )
    yield "# EOF"


Values = dict[str, float | None]


def _training(run: Run, narrowing: Narrowing) -> Values:
    """Newest step, and of each number the newest that is known: not every training reports at every step."""
    row = run.sql(
        f"""
        select
            max(step) as step, arg_max(started_unix_s, step) as started, arg_max(loss, step) as loss,
            arg_max(grad_norm, step) as grad_norm, arg_max(lr, step) as lr
        from (
            select step, min(started_unix_s) as started_unix_s, avg(loss) as loss, avg(grad_norm) as grad_norm,
                   avg(lr) as lr
            from steps
            where {narrowing.condition(run, ("step",))}
            group by step
        )
        """
    )
    return dict(zip(row.columns, row.fetchall()[0], strict=True))


def _operands(run: Run, narrowing: Narrowing) -> list[tuple[Operand, Values]]:
    """Of each operand the values of its newest step; errors those of its newest sampled step."""
    of_tensor = narrowing.condition(run, ("layer", "tensor", "step"))
    of_operand = narrowing.condition(run, ("layer", "tensor", "step", "recipe"))
    rows = run.sql(
        f"""
        select
            layer, tensor, null as recipe, null as fmt, arg_max({{'value': amax}}, step).value as amax,
            sum(n_nonfinite) as nonfinite, null as underflow, null as overflow, null as sqnr_db, null as scale_gap_bits
        from tensor_steps
        where {of_tensor}
        group by layer, tensor
        union all
        select
            layer, tensor, recipe, fmt, null, null, errors.underflow, errors.overflow, errors.sqnr_db, gap
        from (
            select
                layer, tensor, recipe, fmt,
                arg_max({{'underflow': underflow, 'overflow': overflow, 'sqnr_db': sqnr_db}}, step)
                    filter (exact is not null) as errors,
                arg_max({{'value': scale_gap_bits}}, step).value as gap
            from operand_steps
            where not alternate and {of_operand} and step >= {_from_step(run, of_tensor)}
            group by layer, tensor, recipe, fmt
        )
        order by layer, tensor, recipe nulls first, fmt
        """
    )
    names = rows.columns[4:]
    return [(Operand(*row[:4]), dict(zip(names, row[4:], strict=True))) for row in rows.fetchall()]


def _from_step(run: Run, condition: str) -> int:
    """The step from which on every operand was sampled once: what is older is not looked at."""
    query = f"""
        select coalesce(min(step), 0)
        from (
            select max(step) as step
            from tensors
            where sampled and is_judged_pass(pass) and {condition}
            group by layer, tensor
        )
    """
    return int(run.sql(query).fetchall()[0][0])


def _labels_of(operand: Operand) -> dict[str, str]:
    given = {"layer": operand.layer, "tensor": operand.tensor, "recipe": operand.recipe, "fmt": operand.fmt}
    return {name: value for name, value in given.items() if value is not None}


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(value)
