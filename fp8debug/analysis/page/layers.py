"""Which layers a page shows, in which order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fp8debug.analysis.report import Report
from fp8debug.analysis.run import Run

_WORST = """
select layer
from (
    select layer, max(db_lost) as db_lost, max(scale_gap_bits) as gap
    from layer_records
    where not alternate
    group by layer
)
order by coalesce(db_lost, 0) desc, gap desc nulls last, layer
"""


def model_order(run: Run, layers: Iterable[str]) -> tuple[str, ...]:
    """As the model has them: parts of a layer, such as `experts.w[3]`, at its place, unknown ones at the end."""
    places = {layer.info.name: place for place, layer in enumerate(run.layers)}

    def key(layer: str) -> tuple[int, list[tuple[int, str]]]:
        place = places.get(layer, places.get(layer.rpartition("[")[0], len(places)))
        return place, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", layer)]

    return tuple(sorted(layers, key=key))


def shown_layers(
    run: Run, report: Report | None, recorded: Sequence[str], most: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """At most `most` of the recorded layers in model order, and a note if that is not all of them."""
    if len(recorded) <= most:
        return model_order(run, recorded), ()
    told = [layer for layer, _ in told_operands(report)] if report is not None else []
    worst = [layer for (layer,) in run.sql(_WORST).fetchall()]
    known = set(recorded)
    kept = [layer for layer in dict.fromkeys([*told, *worst, *model_order(run, recorded)]) if layer in known][:most]
    first = "those with findings and candidates, then the worst" if report is not None else "the worst"
    note = f"{most:,} of {len(recorded):,} layers are shown: {first}."
    return model_order(run, kept), (note,)


def told_operands(report: Report) -> list[tuple[str, str]]:
    """Operands of findings, then candidates, then the watch list; worst first, some more than once."""
    of_findings = [
        (place.layer, place.tensor or "") for found in report.findings for place in found.places if place.layer
    ]
    return of_findings + [(one.layer, one.tensor) for one in (*report.candidates, *report.watch)]
