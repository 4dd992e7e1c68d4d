"""The name that each target has for a layer of a run."""

from __future__ import annotations

import re

from fp8debug.analysis.plans.export import Names
from fp8debug.rundir import LayerInfo

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Path segments that DDP, compile, FSDP and checkpointing put into names; those of a run lack them."""
_OUTER = f"(?:(?:{'|'.join(WRAPPERS)})\\.)*"
_MEGATRON = re.compile(r"\w*(Column|Row)Parallel\w*Linear|TE\w*Linear\w*")
_FUSED = ("LayerNormMLP", "GroupedLinear")


def fqn(layer: LayerInfo) -> str:
    """The name in its own model: where a run has several models, `Model#1.` stands before it."""
    return layer.name.removeprefix(f"{layer.root}.") if "#" in layer.root else layer.name


def linear_fqn(layer: LayerInfo) -> str | None:
    """The name of an nn.Linear; None for anything else, which torchao and those that build on it never convert."""
    return fqn(layer) if layer.kind in ("Linear", "Float8Linear") else None


def is_megatron(layer: LayerInfo) -> bool:
    """Whether Megatron made it: the children of its `layers` know their number in the whole model, from 1."""
    return _MEGATRON.fullmatch(layer.class_name) is not None


def te_name(layer: LayerInfo, names: Names) -> str:
    """The name in Transformer Engine's debug API: as `infer_and_assign_layer_names` gives it, or as in the run."""
    return ".".join(_te_segments(layer, names))


def te_pattern(layer: LayerInfo, names: Names) -> str:
    """A regex for that name within `te_frame`: escaped, with wrappers optional where the run had some."""
    raw = layer.raw_name.split(".")
    segments = [segment for segment in raw if segment not in WRAPPERS]
    wanted = _te_segments(layer, names)[names == "te" :]
    if len(segments) != len(wanted):  # kept as it was, since another layer differs from it in its wrappers alone
        return re.escape(".".join(wanted))
    parts, rest = [], iter(wanted)
    for segment in raw:
        if segment not in WRAPPERS:
            parts.append(re.escape(next(rest)) + r"\.")
        elif parts:
            parts.append(rf"(?:{segment}\.)?")
    return "".join(parts).removesuffix(r"\.")


def te_frame(patterns: list[str], names: Names) -> str:
    """One anchored regex for several patterns, with any wrappers around the model."""
    start = r"model\." if names == "te" else ""
    return f"^{start}{_OUTER}(?:{'|'.join(patterns)})$"


def megatron_path(layer: LayerInfo) -> str:
    """The path of its module below the GPTModel, as Megatron has it before it wraps it: numbered in its own stage."""
    path = [part for part in layer.raw_name.split(".") if part not in WRAPPERS] or [fqn(layer)]
    return ".".join(path[:-1] if layer.kind in _FUSED else path)


def _te_segments(layer: LayerInfo, names: Names) -> list[str]:
    segments = fqn(layer).split(".")
    if names == "model":
        return segments
    if is_megatron(layer):
        before = ["", *segments]
        segments = [
            str(int(segment) + 1) if segment.isdecimal() and previous == "layers" else segment
            for segment, previous in zip(segments, before, strict=False)
        ]
    return ["model", *segments]
