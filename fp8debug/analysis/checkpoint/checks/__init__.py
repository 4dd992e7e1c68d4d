"""Checks that need nothing but the checkpoint itself; one module for each thing that is looked at."""

from __future__ import annotations

from fp8debug.analysis.checkpoint.checks.hit import Check

CHECKS: tuple[Check, ...] = ()
"""All of them, in the order in which a person would ask."""
