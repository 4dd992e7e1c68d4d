"""What the script of a page draws from, as one text: a header of names and the planes of its runs.

The header is JSON with the fields of the records of `analysis.page` under their own names. Names that come from a run
are made visible as everywhere on the page, so that addresses, labels and data agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fp8debug import __version__
from fp8debug.analysis.page.records import FormatRange, Metric, PageRun, PageSpike, Plane, Training
from fp8debug.cli.render.html.container import Detail, Packed, encode, pack
from fp8debug.errors import escape

DATA_VERSION = 1


@dataclass(frozen=True, slots=True)
class PageData:
    """Everything that is drawn."""

    kind: str
    """report | compare"""
    metrics: tuple[Metric, ...]
    formats: tuple[FormatRange, ...]
    runs: tuple[PageRun, ...]
    """Of a comparison all with the same layers and steps."""
    links: tuple[dict[str, object], ...] = ()
    """Cells that the report is about, the most serious first."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The data as the page holds them."""

    text: str
    units: dict[str, float]
    """By the name of a metric, the coarsest step that its values are rounded to; octaves for log2 metrics."""


def drawing(data: PageData, detail: Detail) -> Drawing:
    """The data, kept as finely as `detail` says."""
    metrics = {metric.name: metric for metric in data.metrics}
    units: dict[str, float] = {}
    packed = []
    for plane in (plane for run in data.runs for plane in run.planes):
        packed.append(_packed(plane, metrics[plane.metric], detail))
        units[plane.metric] = max(units.get(plane.metric, 0.0), packed[-1].unit)
    return Drawing(encode(_header(data), packed), units)


def _packed(plane: Plane, metric: Metric, detail: Detail) -> Packed:
    return pack(plane.values, detail, unit=metric.unit, is_log2=metric.is_log2)


def _header(data: PageData) -> dict[str, Any]:
    return {
        "version": DATA_VERSION,
        "fp8debug_version": __version__,
        "kind": data.kind,
        "metrics": [_metric(metric) for metric in data.metrics],
        "formats": [asdict(fmt) for fmt in data.formats],
        "runs": [_run(run) for run in data.runs],
        "links": list(data.links),
    }


def _metric(metric: Metric) -> dict[str, Any]:
    fields = asdict(metric)
    return {**fields, "bands_by_fmt": dict(fields["bands_by_fmt"])}


def _run(run: PageRun) -> dict[str, Any]:
    return {
        "name": escape(run.name),
        "path": escape(run.path),
        "layers": [escape(layer) for layer in run.layers],
        "first_steps": run.first_steps.tolist(),
        "last_steps": run.last_steps.tolist(),
        "span": run.span,
        "planes": [_plane(plane) for plane in run.planes],
        "training": None if run.training is None else _training(run.training),
        "distributions": [{**asdict(found), "layer": escape(found.layer)} for found in run.distributions],
        "notes": [escape(note) for note in run.notes],
    }


def _plane(plane: Plane) -> dict[str, Any]:
    return {name: getattr(plane, name) for name in ("metric", "operand", "recipe", "fmt", "sql")}


def _training(training: Training) -> dict[str, Any]:
    series = {name: getattr(training, name) for name in ("loss", "grad_norm", "lr")}
    return {
        "steps": training.steps.tolist(),
        **{name: None if values is None else values.tolist() for name, values in series.items()},
        "sql": training.sql,
        "spikes": [_spike(spike) for spike in training.spikes],
    }


def _spike(spike: PageSpike) -> dict[str, Any]:
    moved: Sequence[dict[str, Any]] = [
        {**asdict(one), "layer": escape(one.layer), "sentence": escape(one.sentence)} for one in spike.moved
    ]
    return {**asdict(spike), "sentence": escape(spike.sentence), "moved": moved}
