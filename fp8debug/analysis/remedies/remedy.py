"""A remedy: what was tried for an operand, cheapest first, and the first change that brings it inside the rules."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("margin", "history", "most_recent", "format", "current", "block", "mxfp8", "gemm_bf16", "layer_bf16")
"""Kinds of change in the order in which they are tried: the cheapest first."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One change, and what the operand is under it; numbers are medians over the steps that fail, else over all."""

    kind: str
    """One of `KINDS`; in_use: no change."""
    change: str
    """Recipe for the operand, or `bf16`."""
    outcome: str
    """fixes | not_enough | not_recorded | unknown; of no change: not_enough | fine | unknown"""
    sqnr_db: float | None = None
    underflow: float | None = None
    overflow: float | None = None
    scale_gap_bits: float | None = None
    gain: float | None = None
    note: str = ""
    """Why, in a few words."""
    sqnr_low_db: float | None = None
    """SQNR of the smallest 99 % of the non-zero values; None under block recipes."""
    gemm: str | None = None
    """The GEMM that runs in BF16, of a single one."""
    rest: str | None = None
    """What the other GEMMs read the operand in, of a single GEMM in BF16; None: the recipe in use."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """The search for one operand."""

    layer: str
    tensor: str
    trials: tuple[Trial, ...]
    """In order, up to the first that fixes; empty where nothing is wrong."""
    chosen: Trial | None
    """The last of them; None where nothing is wrong."""
    recipe: str
    """What the operand is in now."""
    present: Trial
    """How it is now, as kind in_use."""
