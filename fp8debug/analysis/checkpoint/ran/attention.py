"""Scales of the cache of keys and values, judged by the keys and values that a run recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.ran.layers import matched_layers
from fp8debug.analysis.checkpoint.records import CheckPlace
from fp8debug.analysis.run import Run
from fp8debug.formats import E4M3

_TENSORS = {"k": "key", "v": "value"}
_PARTS = (".qk", ".pv", ".k_proj", ".v_proj", ".attn")
"""What may follow the name of the attention, in a run or before a scale's own name."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """Keys, or values, of one attention over the whole run."""

    layer: str
    tensor: str
    amax: float
    worst_channel: int | None
    median_channel: float | None


def cache_judged(subject: Subject, run: Run) -> tuple[list[Hit], list[str]]:
    """Hits of scales that clip, and a sentence on those that do not."""
    hits: list[Hit] = []
    notes: list[str] = []
    for kind, tensor in _TENSORS.items():
        pairs = list(_pairs(subject, run, kind))
        clipping = [(seen, name, scale) for seen, name, scale in pairs if seen.amax / scale >= E4M3.overflow_threshold]
        hits += [_hit(run, seen, name, scale, len(pairs)) for seen, name, scale in clipping]
        if pairs and not clipping:
            most = max(seen.amax / scale for seen, _, scale in pairs)
            notes.append(
                f"scales of {tensor}s hold all that the run had in {len(pairs):,} layers: at most {most:.4g} of "
                f"{E4M3.max:g} is used"
            )
    return hits, notes


def _pairs(subject: Subject, run: Run, kind: str) -> Iterator[tuple[_Seen, str, float]]:
    seen = {_attention(one.layer): one for one in _seen(run, _TENSORS[kind])}
    scales = {}
    for scale in subject.convention.scales:
        facts = subject.facts.scales.get(scale.name)
        if scale.kind == kind and facts is not None and facts.n == 1 and facts.median:
            scales[_attention(scale.module)] = (scale.name, 1 / facts.median if scale.divides else facts.median)
    for layer, module in matched_layers(list(seen), list(scales)).items():
        yield seen[layer], *scales[module]


def _attention(name: str) -> str:
    return next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)


def _seen(run: Run, tensor: str) -> list[_Seen]:
    rows = run.sql(
        """
        select t.layer, max(t.amax), any_value(c.worst_channel), any_value(c.median)
        from tensors as t
        left join channel_stats as c
            on c.layer = t.layer and c.tensor = t.tensor and c.axis = 'K' and c.measure = 'amax'
        where t.tensor = $tensor and t.amax is not null
        group by t.layer
        """,
        tensor=tensor,
    ).fetchall()
    return [_Seen(layer, tensor, amax, channel, median) for layer, amax, channel, median in rows]


def _hit(run: Run, seen: _Seen, name: str, scale: float, of: int) -> Hit:
    share = _share_beyond(run, seen, scale * E4M3.overflow_threshold)
    counted = "" if share is None else f"; {100 * share:.2g} % of all are clipped"
    channel = ""
    if seen.worst_channel is not None and seen.median_channel is not None:
        channel = (
            f"; the worst channel is {seen.worst_channel}, half of the channels stay below {seen.median_channel:.3g}"
        )
    message = (
        f"{name} is {scale:.4g}, and {seen.tensor}s of {seen.layer} reach {seen.amax:.4g}, of which E4M3 holds "
        f"{E4M3.max * scale:.4g}{counted}{channel}"
    )
    numbers = {"scale": scale, "amax": seen.amax, "clipped_share": share, "worst_channel": seen.worst_channel}
    place = CheckPlace(name, message, numbers=numbers, brief=f"scale {scale:.4g}, amax {seen.amax:.4g}")
    return Hit("kv_scale_clips", place, of, weight=seen.amax / scale)


def _share_beyond(run: Run, seen: _Seen, limit: float) -> float | None:
    """Share of the recorded elements of at least that magnitude, exact; None: no record was sampled."""
    ((share,),) = run.sql(
        """
        select sum(h.count) filter (abs(h.value) >= $at_least) / sum(h.count)
        from histograms as h
        join tensors as t using (segment, rank, seq)
        where t.layer = $layer and t.tensor = $tensor and h.counted = 'high'
        """,
        at_least=limit,
        layer=seen.layer,
        tensor=seen.tensor,
    ).fetchall()
    return None if share is None else float(share)
