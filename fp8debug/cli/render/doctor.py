"""What `fp8debug doctor` found, as text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fp8debug.cli.examination import Examination, LayerCheck
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.runs import size
from fp8debug.cli.render.tables import columns, escape, wrap
from fp8debug.cli.render.wording import count
from fp8debug.hooks.checkup import GemmCheck
from fp8debug.hooks.environment import Ability, Environment

DOCTOR_VERSION = 1
_WIDTH = 100


def environment_text(found: Environment) -> str:
    """What a capture could do here."""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    engine = "numba (compiled)" if found.engine == "numba" else "torch: `pip install fp8debug[cpu]` counts faster"
    writable = "writable" if found.is_writable else "NOT WRITABLE: give --out"
    ranks = f"rank {found.rank} of {found.world_size}" if found.world_size > 1 else "one process"
    lines = [
        "HERE",
        *wrap(versions, _WIDTH, indent="  versions  ", hanging=""),
        f"  counting  {engine}",
        f"  devices   {', '.join(found.devices)}",
        f"  ranks     {ranks}",
        f"  runs      {found.runs_folder}/: {writable}, {size(found.free_bytes)} free",
        "",
        "BACKENDS",
        *_abilities(found.backends),
        "",
        "TRAINERS",
        *_abilities(found.trainers),
        "",
        "Next: `fp8debug doctor train.py` runs one step of a script and says what would be recorded of it.",
    ]
    return "\n".join(lines) + "\n"


def examination_text(found: Examination) -> str:
    """What would be recorded of a script."""
    taken = [layer for layer in found.layers if layer.matched]
    lines = [
        f"SCRIPT {escape(found.script)}: "
        + ("its first step was run" if found.stepped else "it ended before an optimizer stepped"),
        "",
        f"LAYERS  {len(taken)} of {count(len(found.layers), 'GEMM layer')} would be recorded",
        *_layers(found.layers),
        "",
        _share(found.gemms),
        *_missed(found.gemms),
    ]
    if found.notes:
        lines += ["", "SAID WHILE IT RAN"]
        lines += [line for note in found.notes for line in wrap(escape(note), _WIDTH, hanging="  ")]
    return "\n".join(lines) + "\n"


def report_json(surroundings: Environment, found: Examination | None) -> str:
    """One object with all of it."""
    document = {
        "doctor_version": DOCTOR_VERSION,
        "environment": asdict(surroundings),
        "script": None if found is None else asdict(found),
    }
    return document_text(document)


def _abilities(abilities: Sequence[Ability]) -> list[str]:
    return columns([("  " + ("yes" if a.is_there else "no "), a.name, escape(a.meaning)) for a in abilities])


def _layers(layers: Sequence[LayerCheck]) -> list[str]:
    header = ("  layer", "kind", "reached by", "K x N", "recorded", "asked", "ran in")
    return columns([header, *(_layer(layer) for layer in layers)], right=(False, False, False, True))


def _layer(layer: LayerCheck) -> tuple[str, ...]:
    recorded = " ".join(t for t in ("x", "w", "dy") if t in layer.tensors)
    if not recorded:
        recorded = "did not run" if layer.matched else "left out"
    asked, ran = layer.precision_asked or "-", layer.precision_ran or "-"
    sizes = f"{layer.in_features}x{layer.out_features}"
    return (f"  {escape(layer.name)}", layer.kind, layer.backend, sizes, recorded, asked, ran)


def _share(gemms: Sequence[GemmCheck]) -> str:
    total = sum(gemm.n_multiplications for gemm in gemms)
    recorded = sum(gemm.n_multiplications for gemm in gemms if gemm.why_not is None)
    n_recorded, n_total = sum(g.count for g in gemms if g.why_not is None), sum(g.count for g in gemms)
    share = f", {recorded / total:.1%} of their multiplications" if total else ""
    return f"GEMMS   {n_recorded} of {n_total} forward GEMMs of the step would be recorded{share}"


def _missed(gemms: Sequence[GemmCheck]) -> list[str]:
    missed = [gemm for gemm in gemms if gemm.why_not is not None]
    if not missed:
        return []
    header = ("  not recorded", "operation", "M x K x N", "times", "why")
    rows = [(f"  {escape(g.module)}", g.operation, _size(g), str(g.count), g.why_not or "") for g in missed]
    return columns([header, *rows], right=(False, False, False, True))


def _size(gemm: GemmCheck) -> str:
    return (f"{gemm.batch} of " if gemm.batch > 1 else "") + f"{gemm.m}x{gemm.k}x{gemm.n}"
