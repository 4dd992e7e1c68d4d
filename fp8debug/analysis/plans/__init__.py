"""Plans in the formats of other tools: one file a target; and what a plan in any of them would match.

An exporter gets the departures of each layer (`departures`), says what its target can express, and widens the rest to
the next larger thing that it can, with a comment. `check` reads a file back and holds its entries against layers.
"""

from __future__ import annotations

from collections.abc import Iterable

from fp8debug.analysis.plans import accelerate, megatron, own, te, torchao, torchtitan
from fp8debug.analysis.plans.departures import departures, whole_layers, without_idle
from fp8debug.analysis.plans.export import Export, Exporter, Names, Request
from fp8debug.analysis.plans.flops import flops_kept
from fp8debug.plans import Plan
from fp8debug.rundir import LayerInfo

TARGETS: dict[str, Exporter] = {
    "fp8debug": own.export,
    "te": te.export,
    "megatron": megatron.export,
    "torchtitan": torchtitan.export,
    "torchao": torchao.export,
    "accelerate": accelerate.export,
}
"""What `--for` may be."""

__all__ = ["TARGETS", "Export", "Names", "export", "flops_kept", "whole_layers", "without_idle"]


def export(plan: Plan, target: str, layers: Iterable[LayerInfo], names: Names = "te") -> Export:
    """The plan as `target`, one of `TARGETS`, reads it.

    Args:
        plan: what to write.
        target: whose format.
        layers: all GEMM layers of the run: their classes decide names, and what else a pattern would match is said.
        names: for Transformer Engine's debug API, see `Names`.
    """
    known = tuple(layers)
    return TARGETS[target](Request(plan, departures(plan, known), known, names))
