"""Which tensors belong together, and the one number that scales a tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.records import Quantised, Scale

FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
"""Names of layers that readers run as one GEMM: vLLM, SGLang and TensorRT-LLM fuse the first and the fifth."""


def fused_groups(subject: Subject) -> Iterator[tuple[Quantised, ...]]:
    """Quantised layers of one parent that readers fuse, in the order of the GEMM; with one number for a tensor each."""
    children: dict[str, dict[str, Quantised]] = defaultdict(dict)
    for one in subject.convention.quantised:
        parent, _, name = one.module.rpartition(".")
        children[parent][name] = one
    for named in children.values():
        for names in FUSED:
            if all(name in named for name in names):
                parts = tuple(named[name] for name in names)
                if all(number_scales(part) for part in parts):
                    yield parts


def name_of_parts(parts: Sequence[Quantised]) -> str:
    """`layers.0.self_attn.{q_proj, k_proj, v_proj}`."""
    parent = parts[0].module.rpartition(".")[0]
    return f"{parent}.{{{', '.join(part.module.rpartition('.')[2] for part in parts)}}}".removeprefix(".")


def number_scales(quantised: Quantised) -> tuple[Scale, ...]:
    """Those of its scales that are one number for the whole tensor."""
    return tuple(scale for scale in quantised.scales if scale.layout == "tensor")


def number_of(subject: Subject, quantised: Quantised) -> float | None:
    """What all its codes are multiplied with by the scales that are one number; None: a number is not usable."""
    total = 1.0
    for scale in number_scales(quantised):
        facts = subject.facts.scales.get(scale.name)
        if facts is None or facts.n != 1 or not facts.median:
            return None
        total *= 1 / facts.median if scale.divides else facts.median
    return total
