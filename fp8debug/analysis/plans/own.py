"""The plan in fp8debug's own format, which says everything."""

from __future__ import annotations

from fp8debug.analysis.plans.export import Export, Request
from fp8debug.plans import plan_text


def export(request: Request) -> Export:
    """A TOML file for `attach --plan` and `verify --plan`."""
    return Export(plan_text(request.plan), request.plan)
