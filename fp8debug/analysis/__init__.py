"""Reading a run: DuckDB views over its Parquet files, and the rules that turn numbers into findings.

Needs duckdb only; torch is never imported here.
"""

from __future__ import annotations

from fp8debug.analysis.run import Run, open_run

__all__ = ["Run", "open_run"]
