"""A run as a page shows it: planes of metrics over layers and steps, curves, distributions, queries."""

from fp8debug.analysis.page.align import aligned
from fp8debug.analysis.page.build import build_page, page_run, page_runs
from fp8debug.analysis.page.columns import merge_columns

__all__ = ["aligned", "build_page", "merge_columns", "page_run", "page_runs"]
