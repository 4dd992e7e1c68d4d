"""Everything that goes into a bundle, as a run directory that can be opened like any other."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fp8debug.analysis.bundle.content import Bundle
from fp8debug.analysis.bundle.manifest import other_names, scrubbed_manifest, scrubbed_rank
from fp8debug.analysis.bundle.moment import Moment, moment_of
from fp8debug.analysis.bundle.readme import readme
from fp8debug.analysis.bundle.scrub import Scrubber, hosts_of, users_of
from fp8debug.analysis.bundle.tables import TableCopy, texts_of
from fp8debug.analysis.diagnosis import Finding, RuleBook, diagnose
from fp8debug.analysis.run import Run, open_run
from fp8debug.rundir import RunDir

BUNDLE_VERSION = 1
FINDINGS = "findings.json"
README = "README.txt"
N_SIDE_STEPS = 2
"""Sampled steps before and after the anomaly whose histograms are taken."""
MAX_HISTOGRAMS = 200


def collect(
    run: Run, folder: Path, *, rules: RuleBook | None = None, limit_bytes: int, anonymous_layers: bool = False
) -> Bundle:
    """Write into `folder` what another person needs to see what is wrong in `run`.

    Left out: raw values, weights at fixed positions, paths, users, hosts, launch and job numbers.

    Args:
        run: an open run, whole.
        folder: an empty folder.
        rules: as for `diagnose`.
        limit_bytes: most bytes of all tables; histograms are cut first, then steps far from the anomaly.
        anonymous_layers: call layers layer_001 and so on.

    Raises:
        UsageError: a rule of the user's that cannot be asked.
    """
    findings = diagnose(run, rules)
    moment = moment_of(run, findings)
    scrubber = _scrubber(run, anonymous_layers=anonymous_layers)
    target = RunDir(folder)
    _write_manifests(run, target, scrubber)
    tables = TableCopy(run, scrubber, target)
    cut = [words for words in [tables.copy(moment.step, limit_bytes)] if words is not None]
    n_histograms = 0
    if moment.step is not None:
        n_histograms, fewer = _histograms(tables, moment, limit_bytes)
        cut += fewer
    shown = _scrubbed_findings(findings, scrubber)
    verdict = scrubber.text(moment.verdict)
    _write_findings(folder / FINDINGS, moment, verdict, scrubber, shown)
    lost = _lost(folder, findings, scrubber, rules)
    bundle = Bundle(moment, verdict, len(findings), lost, n_histograms, tuple(cut))
    (folder / README).write_text(readme(bundle, scrubber), encoding="utf-8")
    return bundle


def _scrubber(run: Run, *, anonymous_layers: bool) -> Scrubber:
    ranks = RunDir(run.path).read_ranks()
    texts = [json.dumps(asdict(run.manifest), default=str), *texts_of(run.prepare("select 1")), str(run.path)]
    names: list[str] = []
    if anonymous_layers:
        recorded = run.sql("select layer from stored.tensors group by layer order by min(seq)").fetchall()
        names = list(dict.fromkeys([*(layer.info.name for layer in run.layers), *(name for (name,) in recorded)]))
    return Scrubber(users_of(texts), hosts_of(info.host for info in ranks), other_names(names))


def _write_manifests(run: Run, target: RunDir, scrubber: Scrubber) -> None:
    source = RunDir(run.path)
    target.write_manifest(scrubbed_manifest(source, run.manifest, scrubber))
    for info in source.read_ranks():
        target.write_rank(scrubbed_rank(info, scrubber))


def _histograms(tables: TableCopy, moment: Moment, limit_bytes: int) -> tuple[int, list[str]]:
    """Copy as many as fit; how many, and what was cut."""
    assert moment.step is not None
    n, operands = MAX_HISTOGRAMS, moment.operands
    copied = tables.copy_histograms(moment.step, operands, N_SIDE_STEPS, n)
    if not copied and operands:  # they were never sampled around that step: others may tell something
        operands = ()
        copied = tables.copy_histograms(moment.step, operands, N_SIDE_STEPS, n)
    while tables.n_bytes > limit_bytes and n > 0:
        n //= 2
        copied = tables.copy_histograms(moment.step, operands, N_SIDE_STEPS, n)
    if n < MAX_HISTOGRAMS:
        return copied, [f"histograms of {copied} tensors alone: more are larger than the limit"]
    if copied == MAX_HISTOGRAMS:
        return copied, [f"histograms of {MAX_HISTOGRAMS} tensors alone, those nearest to the anomaly"]
    return copied, []


def _scrubbed_findings(findings: Sequence[Finding], scrubber: Scrubber) -> list[dict[str, Any]]:
    shown = []
    for finding in findings:
        record = asdict(finding)
        for place in record["places"]:
            place["layer"] = None if place["layer"] is None else scrubber.layer(place["layer"])
            place["message"] = scrubber.text(place["message"])
        places, page = record.pop("places"), record.pop("page")
        if not page.startswith("docs/"):  # the file of a rule of the user's own
            page = Path(page).name
        shown.append(_finite({**scrubber.value(record), "page": page, "places": places}))
    return shown


def _write_findings(
    path: Path, moment: Moment, verdict: str, scrubber: Scrubber, findings: Sequence[dict[str, Any]]
) -> None:
    operands = [{"layer": scrubber.layer(layer), "tensor": tensor} for layer, tensor in moment.operands]
    record = {
        "version": BUNDLE_VERSION,
        "verdict": verdict,
        "step": moment.step,
        "step_is": moment.why,
        "operands": operands,
        "findings": list(findings),
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _lost(folder: Path, findings: Sequence[Finding], scrubber: Scrubber, rules: RuleBook | None) -> tuple[str, ...]:
    """Open the bundle as its reader will, and compare."""
    with open_run(folder, threads=1) as reopened:
        again = {(f.rule, place.layer, place.tensor) for f in diagnose(reopened, rules) for place in f.places}
    told = [
        (f.rule, None if place.layer is None else scrubber.layer(place.layer), place.tensor)
        for f in findings
        for place in f.places
    ]
    return tuple(dict.fromkeys(key[0] for key in told if key not in again))


def _finite(value: Any) -> Any:
    """JSON has no infinity: it becomes a text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value
