"""Noise and cost of each layer's GEMMs: what the smallest set is chosen from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from fp8debug.analysis.remedies.affected import sampled_operands
from fp8debug.analysis.remedies.per_tensor import noise_over_signal
from fp8debug.analysis.run import Run
from fp8debug.gemms import GEMMS
from fp8debug.recipes import BlockRecipe, Recipe

Nsr = dict[tuple[str, str], float]
"""(layer, GEMM or operand) -> noise over signal."""


@dataclass(frozen=True, slots=True)
class LayerNoise:
    """A layer's GEMMs under a recipe."""

    layer: str
    flops: float
    """Of its GEMMs over the run: 2 x tokens x K x N each."""
    nsr: float | None
    """FLOP-weighted mean over its GEMMs of their noise over the signal; None: nothing is known of them."""
    is_measured: bool
    """Whether all of it comes from results that were measured."""

    @property
    def sqnr_db(self) -> float | None:
        """The same in dB; None without noise."""
        return -10 * math.log10(self.nsr) if self.nsr else None


# dgrad and wgrad ran where a dy was seen; shapes are those of the rank's own piece.
_FLOPS = """
with passes as (
    select
        rank, layer,
        sum(n / nullif(shape[-1], 0)) filter (tensor = 'x') as x_tokens,
        sum(n / nullif(shape[-1], 0)) filter (tensor = 'dy') as dy_tokens,
        max(shape[-1]) filter (tensor = 'x') as k, max(shape[-1]) filter (tensor = 'dy') as dy_n,
        max(shape[1]) filter (tensor = 'w' and len(shape) = 2) as w_n
    from tensors
    where is_judged_pass(pass) and tensor in ('x', 'w', 'dy')
    group by rank, layer
)
select layer, sum(2.0 * x_tokens * k * n), sum(2.0 * coalesce(dy_tokens, 0) * k * n)
from (select p.*, coalesce(p.dy_n, p.w_n, l.out_features) as n from passes as p left join layers as l using (layer))
where x_tokens > 0 and k > 0 and n > 0
group by layer
order by layer
"""
_MEASURED = """
select layer, gemm, ratio(sum(sum_err2), sum(sum_x2w2))
from gemms as g
left join (
    select segment, rank, seq, recipe, fmt, source, n_rolls from judged_scales
) as s using (segment, rank, seq, recipe, fmt)
where g.recipe = $recipe and not alternate and accumulation = 'exact' and is_judged_pass(pass)
  and isfinite(sum_err2) and isfinite(sum_x2w2)
  and not coalesce(s.source = 'simulated' and s.n_rolls < getvariable('warmup_rolls'), false)
group by layer, gemm
"""
_IN_BLOCKS = """
select layer, gemm, sum(nsr)
from (
    select layer, tensor, gemm, ratio(sum(sum_err2), sum(sum_x2)) as nsr
    from blocks
    where recipe = $recipe and not alternate and is_judged_pass(pass) and isfinite(sum_err2)
    group by layer, tensor, gemm
)
where nsr is not null
group by layer, gemm
having count(*) = 2
"""


def layer_noise(run: Run, recipe: Recipe) -> tuple[LayerNoise, ...]:
    """Every layer with GEMMs of known size, by name."""
    measured = _nsr(run, _MEASURED, recipe)
    estimated = _nsr(run, _IN_BLOCKS, recipe) if isinstance(recipe, BlockRecipe) else None
    found = []
    for layer, flops in gemm_flops(run).items():
        known = {gemm: measured[layer, gemm] for gemm in flops if (layer, gemm) in measured}
        is_measured = len(known) == len(flops)
        if not is_measured:
            if estimated is None:
                estimated = _from_operands(run, recipe)
            known = {g: estimated[layer, g] for g in flops if (layer, g) in estimated} | known
        found.append(LayerNoise(layer, sum(flops.values()), _weighted(known, flops), is_measured))
    return tuple(found)


def gemm_flops(run: Run) -> dict[str, dict[str, float]]:
    """FLOPs of each GEMM of each layer that ran, over the recorded passes."""
    flops: dict[str, dict[str, float]] = {}
    for layer, forward, backward in run.sql(_FLOPS).fetchall():
        flops[layer] = {"fprop": forward} | ({"dgrad": backward, "wgrad": backward} if backward else {})
    return flops


def _nsr(run: Run, query: str, recipe: Recipe) -> Nsr:
    rows = run.sql(query, recipe=recipe.text).fetchall()
    return {(layer, gemm): nsr for layer, gemm, nsr in rows if nsr is not None}


def _from_operands(run: Run, recipe: Recipe) -> Nsr:
    """The noise of both operands added: what a GEMM of independent errors has.

    Of an operand whose scale a few large values set, the noise of the other 99 % counts: the values beside the large
    ones in the other operand tend to be small.
    """
    operands = noise_over_signal(run, sampled_operands(run), recipe)
    by_layer: dict[str, dict[str, float]] = defaultdict(dict)
    for (layer, tensor), nsr in operands.items():
        by_layer[layer][tensor] = nsr
    return {
        (layer, gemm): sum(seen[tensor] for tensor, _ in read)
        for layer, seen in by_layer.items()
        for gemm, read in GEMMS.items()
        if all(tensor in seen for tensor, _ in read)
    }


def _weighted(known: Mapping[str, float], flops: Mapping[str, float]) -> float | None:
    weight = math.fsum(flops[gemm] for gemm in known)
    return math.fsum(nsr * flops[gemm] for gemm, nsr in known.items()) / weight if weight else None
