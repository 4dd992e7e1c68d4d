"""Layers and plans with names that formats trip over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fp8debug.plans import Plan, PlanEntry
from fp8debug.rundir import LayerInfo

HOSTILE = ('it\'s "quoted"', "# no comment\nenabled: false", "experts[0]", "größe*?", "back\\slash\x1b[31m", "a,b{c}")
"""Module names: anything but a dot may be in one."""


def linear(name: str, kind: str = "Linear", class_name: str = "Linear", raw_name: str | None = None) -> LayerInfo:
    """A layer of a run."""
    return LayerInfo(name, raw_name or name, class_name, "Model", 64, 64, True, kind=kind)


@pytest.fixture
def hostile() -> tuple[str, ...]:
    return HOSTILE


@pytest.fixture
def layers() -> list[LayerInfo]:
    """11 Linear layers in a list, whose 1 is a part of 10, and one under each hostile name."""
    return [linear(f"blocks.{i}") for i in range(11)] + [linear(name) for name in HOSTILE]


@pytest.fixture
def plan() -> Plan:
    """`blocks.1` and every second hostile name in BF16, each for a reason that would break out of a comment."""
    names = ("blocks.1", *HOSTILE[::2])
    return Plan("current", tuple(PlanEntry(n, "bf16", reason=f"{n} loses\nenabled: false\r\x85") for n in names), "r1")


@pytest.fixture
def make_layer() -> Callable[..., LayerInfo]:
    """`make_layer(name, kind, class_name, raw_name)`."""
    return linear
