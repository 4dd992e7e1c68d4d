"""A plan for Transformer Engine's debug API: the YAML config of `nvdlfw_inspect`.

Format as `nvdlfw_inspect.config_manager` 0.2.2 reads it and Transformer Engine's `debug/features` take it. A layer may
match one section only, so that layers with the same treatment share one. A config with no enabled section is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from fp8debug.analysis.plans.departures import Departure
from fp8debug.analysis.plans.export import Export, Note, Request, head
from fp8debug.analysis.plans.paths import te_frame, te_name, te_pattern
from fp8debug.analysis.plans.text import comments, yaml_string
from fp8debug.gemms import GEMMS
from fp8debug.plans import BF16, PlanEntry
from fp8debug.recipes import CurrentScaling, DelayedScaling, Recipe, parse_recipe

_TENSORS = {"x": "activation", "w": "weight", "dy": "gradient"}
_NEVER = "(?!)"
_USE = "For nvdlfw_inspect.api.initialize(config_file=...)."
_ONE = "A layer may match one section only: what else you ask of a layer below belongs into its section."
_HOW = {
    "te": (
        "Layers are called as by nvdlfw_inspect.api.infer_and_assign_layer_names(model): `model.` first, the layers of",
        "Megatron counted from 1. Call it before the first step, or make this file with --names model.",
    ),
    "model": (
        "Layers are called as in the run: give each module that name as `name=`, or make this file with --names te.",
    ),
}


@dataclass(frozen=True, slots=True)
class _Treatment:
    """What one section does."""

    bf16: tuple[str, ...]
    """GEMMs in high precision."""
    current: tuple[tuple[str, tuple[str, ...]], ...]
    """GEMMs with the tensors that get current scaling."""


def export(request: Request) -> Export:
    """Sections with DisableQuantizationLayer, DisableQuantizationGEMM and PerTensorScaling; the rest is widened."""
    running = parse_recipe(request.plan.recipe)
    sections: dict[_Treatment, list[Departure]] = defaultdict(list)
    notes: dict[str, str] = {}
    entries: list[PlanEntry] = []
    for departure in request.departures:
        treatment = _treatment(departure, running)
        sections[treatment].append(departure)
        entries += _entries(departure, treatment)
        if note := _note(departure, treatment):
            notes[departure.info.name] = note
    lines = comments(head(request, "te", (_USE, *_HOW[request.names], _ONE)))
    for number, (treatment, members) in enumerate(sections.items(), start=1):
        lines += ["", f"fp8debug_{number}:", "  enabled: True", "  layers:"]
        for departure in members:
            note = notes.get(departure.info.name, "")
            because = ". ".join(part for part in (departure.reason.rstrip("."), note) if part)
            lines += comments([f"{te_name(departure.info, request.names)}: {because or departure.asked}"], "    ")
        pattern = te_frame([te_pattern(d.info, request.names) for d in members], request.names)
        lines += [f"    layer_name_regex_pattern: {yaml_string(pattern)}", "  transformer_engine:"]
        lines += _features(treatment)
    if not sections:  # it refuses a config without a section
        lines += ["", "fp8debug_nothing:", "  enabled: True", "  layers:", f"    layer_name_regex_pattern: '{_NEVER}'"]
        lines += ["  transformer_engine:", *_feature("DisableQuantizationLayer")]
    told = tuple(Note(name, note) for name, note in notes.items())
    return Export("\n".join(lines) + "\n", request.written(entries), told)


def _treatment(departure: Departure, running: Recipe) -> _Treatment:
    bf16, current = [], []
    for gemm in GEMMS:
        cells = departure.of_gemm(gemm)
        changed = {tensor: change for tensor, change in cells.items() if change != departure.recipe}
        if any(not _is_per_tensor(change, running) for change in changed.values()):
            bf16.append(gemm)
        elif changed:
            current.append((gemm, tuple(_TENSORS[tensor] for tensor in changed)))
    return _Treatment(tuple(bf16), tuple(current))


def _entries(departure: Departure, treatment: _Treatment) -> Iterator[PlanEntry]:
    """What the section does, as entries of a plan."""
    name, reason = departure.info.name, departure.reason
    if len(treatment.bf16) == len(GEMMS):
        yield PlanEntry(name, BF16, reason=reason)
        return
    for gemm in treatment.bf16:
        yield PlanEntry(name, BF16, gemm=gemm, reason=reason)
    for gemm, _ in treatment.current:
        changed = {t: c for t, c in departure.of_gemm(gemm).items() if c != departure.recipe}
        for tensor, change in changed.items():
            yield PlanEntry(name, change, tensor, gemm, reason)


def _is_per_tensor(change: str, running: Recipe) -> bool:
    """Whether PerTensorScaling does it: current scaling in the recipe's own formats, under delayed scaling alone."""
    return (
        change != BF16
        and isinstance(running, DelayedScaling)
        and parse_recipe(change) == CurrentScaling(fp8_format=running.fp8_format)
    )


def _note(departure: Departure, treatment: _Treatment) -> str:
    """What was widened, in words; empty when nothing was."""
    wider = [g for g in treatment.bf16 if set(departure.of_gemm(g).values()) != {BF16}]
    if not wider:
        return ""
    got = "the layer is" if len(treatment.bf16) == len(GEMMS) else f"{' and '.join(treatment.bf16)} run"
    return f"Widened: the plan has {departure.asked}, which a section cannot say; {got} in BF16"


def _features(treatment: _Treatment) -> list[str]:
    lines = []
    if len(treatment.bf16) == len(GEMMS):
        lines += _feature("DisableQuantizationLayer")
    elif treatment.bf16:
        lines += [*_feature("DisableQuantizationGEMM"), f"      gemms: [{', '.join(treatment.bf16)}]"]
    if treatment.current:
        lines += [*_feature("PerTensorScaling"), "      gemms_struct:"]
        for gemm, tensors in treatment.current:
            lines += [f"        - gemm: {gemm}", f"          tensors: [{', '.join(tensors)}]"]
    return lines


def _feature(name: str) -> list[str]:
    return [f"    {name}:", "      enabled: True"]
