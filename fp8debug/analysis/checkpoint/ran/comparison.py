"""A checkpoint against the weights of a run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.ran.attention import cache_judged
from fp8debug.analysis.checkpoint.ran.layers import matched_layers
from fp8debug.analysis.checkpoint.ran.recorded import (
    RecordedWeight,
    WeightSample,
    recorded_weights,
    sampled_layers,
    weight_samples,
)
from fp8debug.analysis.checkpoint.ran.sampled import Sampled, judged, sample_plain, sample_quantised
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Stored
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor, Comparison
from fp8debug.analysis.run import Run
from fp8debug.errors import Fp8DebugError, some

_OTHER_MAGNITUDE = 1.5
"""A ratio of two root mean squares, one of them of a sample, that cannot be chance."""

Weight = Quantised | Stored


def compare_with_run(subject: Subject, run: Run) -> tuple[Comparison, list[Hit]]:
    """Hold a checkpoint against the weights that a run recorded last.

    Weights that were followed at fixed positions (those that GEMMs read in low precision) are compared there; of the
    others, which are recorded as counts of values, the magnitude is.

    Raises:
        Fp8DebugError: it has no weight in common with the checkpoint.
    """
    weights = _weights(subject)
    recorded = recorded_weights(run)
    followed = sampled_layers(run)
    matches = matched_layers([*recorded, *(layer for layer in followed if layer not in recorded)], list(weights))
    cache_hits, cache_notes = cache_judged(subject, run)
    if not matches and not cache_hits and not cache_notes:
        raise Fp8DebugError(_nothing_in_common(run, recorded, followed, weights))
    known = {layer: matches[layer] for layer in followed if layer in matches}
    tensors, hits, notes = _at_positions(subject, run, known, weights)
    rest = {layer: matches[layer] for layer in matches if layer in recorded and layer not in followed}
    more, said = _by_magnitude(subject, recorded, rest, weights)
    return (
        Comparison(
            reference=str(run.path),
            kind="run",
            tensors=tuple(tensors),
            missing=tuple(weights[module].name for module in weights if module not in set(matches.values())),
            extra=tuple(f"{layer} w" for layer in recorded if layer not in matches),
            notes=(*_renamed(matches), *notes, *said, *cache_notes),
        ),
        hits + more + cache_hits,
    )


def _weights(subject: Subject) -> dict[str, Weight]:
    """Matrices of the checkpoint by the name of their layer."""
    found: dict[str, Weight] = {one.module: one for one in subject.convention.quantised if len(one.shape) == 2}
    for name in subject.convention.plain:
        stored = subject.store.tensors[name]
        module, _, ending = name.rpartition(".")
        if len(stored.shape) == 2 and ending == "weight":
            found.setdefault(module, stored)
    return found


def _at_positions(
    subject: Subject, run: Run, matches: Mapping[str, str], weights: Mapping[str, Weight]
) -> tuple[list[ComparedTensor], list[Hit], list[str]]:
    tensors, other_shapes = [], []
    for layer, module in matches.items():
        weight, samples = weights[module], weight_samples(run, layer)
        if samples[0].shape != weight.shape:
            other_shapes.append(f"{weight.name}: {list(weight.shape)}, in the run {list(samples[0].shape)}")
            continue
        alike = [one for one in samples if one.shape == samples[0].shape and len(one.codes) == len(samples[0].codes)]
        tensors.append(judged(weight.name, _sample(subject, weight, samples[0]), alike))
    notes = [f"not compared, since their shapes differ: {some(other_shapes)}"] if other_shapes else []
    return tensors, [_hit(one, len(tensors)) for one in tensors if one.verdict == "different"], notes


def _sample(subject: Subject, weight: Weight, sample: WeightSample) -> Sampled:
    if isinstance(weight, Quantised):
        return sample_quantised(subject.store, weight, sample)
    return sample_plain(subject.store, weight, sample)


def _hit(tensor: ComparedTensor, of: int) -> Hit:
    best = tensor.hypotheses[0] if tensor.hypotheses else None
    why = "" if best is None else f": {best.message}"
    sqnr = "" if tensor.sqnr_db is None else f" ({tensor.sqnr_db:.1f} dB, right ones keep {tensor.healthy_sqnr_db:.1f})"
    place = CheckPlace(
        tensor.name,
        f"{tensor.name} is not the weight that the run had last{sqnr}{why}",
        None if best is None else best.factor,
        {"sqnr_db": tensor.sqnr_db, "gain": tensor.gain},
    )
    return Hit("run_weights_differ", place, of, weight=(tensor.healthy_sqnr_db or 0) - (tensor.sqnr_db or 0))


def _by_magnitude(
    subject: Subject, recorded: Mapping[str, RecordedWeight], matches: Mapping[str, str], weights: Mapping[str, Weight]
) -> tuple[list[Hit], list[str]]:
    """Weights of which only the counts of their values are known."""
    ratios = dict(_ratios(subject, recorded, matches, weights))
    hits = []
    for name, ratio in ratios.items():
        if not 1 / _OTHER_MAGNITUDE < ratio < _OTHER_MAGNITUDE:
            text = f"{name} is {ratio:.4g} times as large (root mean square) as the weight that the run had last"
            place = CheckPlace(name, text, ratio, {"rms_ratio": ratio})
            hits.append(Hit("run_magnitude_differs", place, len(ratios), weight=max(ratio, 1 / ratio)))
    if not ratios:
        return hits, []
    low, high = min(ratios.values()), max(ratios.values())
    note = (
        f"of {len(ratios):,} weights the run has no single values, only how often each occurs; their root mean squares "
        f"are {low:.3g} to {high:.3g} times those of the run"
    )
    return hits, [note]


def _ratios(
    subject: Subject, recorded: Mapping[str, RecordedWeight], matches: Mapping[str, str], weights: Mapping[str, Weight]
) -> Iterator[tuple[str, float]]:
    for layer, module in matches.items():
        weight, rms = weights[module], recorded[layer].rms
        measured = subject.facts.codes if isinstance(weight, Quantised) else subject.facts.plain
        facts = measured.get(weight.name)
        if facts is not None and rms:
            yield weight.name, facts.rms / rms


def _renamed(matches: Mapping[str, str]) -> list[str]:
    other = [f"{layer} is {module}" for layer, module in matches.items() if layer != module]
    return [f"layers of the run were found under other names: {some(other)}"] if other else []


def _nothing_in_common(
    run: Run, recorded: Mapping[str, RecordedWeight], followed: tuple[str, ...], weights: Mapping[str, Weight]
) -> str:
    layers = list(recorded) or list(followed)
    if not layers:
        return (
            f"{run.path} has no record of a weight that is whole on a rank, so nothing can be compared with it; "
            "record w too (--tensors x,w,dy), of a model that is not sharded"
        )
    return (
        f"no weight of {run.path} has the name of one in the checkpoint; got layers {some(layers)}, expected one of "
        f"{some(list(weights)) or 'none: it has no matrices'}"
    )
