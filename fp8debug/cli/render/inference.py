"""The inference check as text for a person, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import columns, escape, named_columns, wrap
from fp8debug.cli.render.wording import count, listed

if TYPE_CHECKING:
    from fp8debug.hooks.inference.check import InferenceCheck, LayerDifference, Variant
    from fp8debug.hooks.inference.origin import Origin

VERSION = 1
MAX_LAYERS = 12
_MAX_NAMED = 6
_VARIANTS = {"all": "emulated FP8", "weights": "FP8 weights alone"}


def inference_text(check: InferenceCheck, looks: Looks, notes: Sequence[str] = ()) -> str:
    """Losses and logits, where the difference arises, and the layers that err most."""
    lines = [
        looks.bold(f"Inference check of {escape(check.title)}"),
        *wrap(
            f"{check.precision} against emulated {check.recipe}, on {escape(check.batch) or 'one batch'}", looks.width
        ),
        "",
        *_outputs(check),
        "",
        looks.bold("Where the difference arises"),
        *_verdict(check, looks),
        "",
        *_layers(check, looks),
    ]
    for note in (*check.notes, *notes, *_left_out(check)):
        lines += wrap(escape(note), looks.width, indent="Note: ", hanging="")
    return "\n".join(lines).rstrip() + "\n"


def inference_json(check: InferenceCheck, notes: Sequence[str] = ()) -> str:
    """All of it as one JSON object; what is not finite is null."""
    record = asdict(replace(check, notes=(*check.notes, *notes)))
    for variant in record["variants"]:
        outputs = variant["outputs"]
        noise = outputs.pop("noise")
        outputs["sqnr_db"], outputs["n_nonfinite"] = _sqnr(noise), noise["n_nonfinite"]
    return document_text({"version": VERSION, **record})


def _outputs(check: InferenceCheck) -> list[str]:
    what = "logits" if check.are_logits else "outputs"
    head = ["", "loss", "change", f"{what} SQNR", "max diff", *(("argmax", "mean KL") if check.are_logits else ())]
    rows = [head, [check.precision, _loss(check.loss), "", "", "", *(["", ""] if check.are_logits else [])]]
    rows += [_row(variant, check) for variant in check.variants]
    lines = [f"  {line}" for line in columns(rows, right=[False] + [True] * 6)]
    said = "of the model itself" if check.loss_source == "as the model returns it" else check.loss_source
    if check.are_logits:
        n = check.emulated.outputs.n_positions
        said += f"; argmax: positions with another largest logit, of {n:,}; KL in nats"
    lines += wrap(f"Loss: {said}.", 78)
    lost = [v for v in check.variants if v.outputs.noise.n_nonfinite]
    lines += [
        f"  {_VARIANTS[v.name]}: {v.outputs.noise.n_nonfinite:,} of the {what} are NaN or Inf, and are left out."
        for v in lost
    ]
    return lines


def _row(variant: Variant, check: InferenceCheck) -> list[str]:
    outputs = variant.outputs
    change = "-" if variant.loss is None or check.loss is None else f"{variant.loss - check.loss:+.4f}"
    cells = [_VARIANTS[variant.name], _loss(variant.loss), change, _db(outputs.noise.sqnr_db)]
    cells.append(f"{outputs.max_difference:.3g}")
    if check.are_logits:
        cells += [
            "-" if outputs.argmax_changed is None else f"{outputs.argmax_changed:.1%}",
            "-" if outputs.mean_kl is None else f"{outputs.mean_kl:.2g}",
        ]
    return cells


def _verdict(check: InferenceCheck, looks: Looks) -> list[str]:
    origin, what = check.origin, "logits" if check.are_logits else "outputs"
    if origin.verdict == "none":
        return wrap(f"Nowhere: the emulated {what} are those of the reference, bit by bit.", looks.width)
    if origin.verdict == "nonfinite":
        return wrap(
            f"{escape(origin.layers[0])}: the first layer whose output is NaN or Inf in emulated FP8 and not in "
            f"{check.precision}.",
            looks.width,
        )
    if origin.verdict == "spread":
        return wrap(_spread(check, origin, what), looks.width)
    return [*_names(origin, looks), *wrap(_reason(check, origin, what), looks.width)]


def _spread(check: InferenceCheck, origin: Origin, what: str) -> str:
    worst = min(check.layers, key=_own)
    text = "Spread evenly over layers: none stands out"
    if origin.trial is not None:
        text += (
            f". {escape(origin.layers[0])} takes most of the noise of the {what} away when it is kept in "
            f"{check.precision}: {max(0.0, origin.trial.share):.0%}"
        )
    shares = [trial.share for trial in origin.tried if trial.layers == (worst.name,)]
    if shares and worst.name != origin.layers[0]:
        text += f"; {escape(worst.name)}, which errs most by itself, {max(0.0, shares[0]):.0%}"
    return text + "."


def _names(origin: Origin, looks: Looks) -> list[str]:
    shown = [f"  {looks.red(escape(name))}" for name in origin.layers[:_MAX_NAMED]]
    rest = len(origin.layers) - _MAX_NAMED
    return [*shown, f"  and {count(rest, 'more layer')}"] if rest > 0 else shown


def _reason(check: InferenceCheck, origin: Origin, what: str) -> str:
    parts = []
    if origin.trial is not None:
        parts.append(
            f"Kept in {check.precision}, {_takes(origin)} {min(1.0, origin.trial.share):.0%} of the noise of the "
            f"{what} away: SQNR {_db(origin.trial.sqnr_db, 'without any noise')} in place of "
            f"{_db(check.emulated.outputs.noise.sqnr_db)}."
        )
    else:
        parts.append("The only layer that is emulated.")
    if origin.own_db is not None:
        whose = "Its own error" if len(origin.layers) == 1 else "The own error of the worst of them"
        beside = f", the median of the others {origin.median_db:.1f} dB" if origin.median_db is not None else ""
        parts.append(f"{whose}, fed with the input of the reference: SQNR {origin.own_db:.1f} dB{beside}.")
    if origin.operand is not None:
        named = {"x": "the input x", "w": "the weight w"}[origin.operand]
        parts.append(f"Most of it comes from {named}.")
    return " ".join(parts)


def _takes(origin: Origin) -> str:
    return "it takes" if len(origin.layers) == 1 else f"these {len(origin.layers)} layers take"


def _layers(check: InferenceCheck, looks: Looks) -> list[str]:
    worst = sorted(check.layers, key=_own)[:MAX_LAYERS]
    shown = [layer for layer in check.layers if layer in worst]
    title = "Layers in order, SQNR of their outputs in dB"
    if len(shown) < len(check.layers):
        title += f"; the {len(shown)} of {len(check.layers)} that err most"
    rows = [["", "own x and w", "own w", "gathered", "gathered, w"]]
    rows += [
        [
            escape(layer.name),
            *(map(_number, (layer.own_db, layer.own_weights_db, layer.gathered_db, layer.gathered_weights_db))),
        ]
        for layer in shown
    ]
    lines = [
        looks.bold(title),
        *(f"  {line}" for line in named_columns(rows, looks.width - 2, right=[False] + [True] * 4)),
    ]
    return [
        *lines,
        *wrap(
            "own: fed with the input of the reference, so the error of this layer alone; gathered: in the emulated "
            "forward, with what came from the layers before.",
            looks.width,
        ),
        "",
    ]


def _left_out(check: InferenceCheck) -> list[str]:
    notes = []
    if check.kept:
        notes.append(f"{count(len(check.kept), 'layer')} kept in {check.precision} by the plan: {_some(check.kept)}")
    by_reason: dict[str, list[str]] = {}
    for name, reason in check.left.items():
        by_reason.setdefault(reason, []).append(name)
    notes += [f"not emulated: {_some(names)}: {reason}" for reason, names in by_reason.items()]
    return notes


def _some(names: Sequence[str]) -> str:
    rest = len(names) - 3
    return f"{', '.join(names[:3])} and {rest} more" if rest > 0 else listed(list(names))


def _own(layer: LayerDifference) -> float:
    return math.inf if layer.own_db is None else layer.own_db


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _db(value: float | None, none: str = "no noise") -> str:
    return none if value is None else f"{value:.1f} dB"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _sqnr(noise: dict[str, float]) -> float | None:
    signal, power = noise["signal"], noise["power"]
    return 10 * math.log10(signal / power) if signal and power else None
