"""Where the heavy part of a question is computed: in this process, or by the machines of a cluster.

Each heavy part is a `Reduction`, two queries: one that is asked of every partition of the run's records, and one that
is asked once of all the answers. Both engines run the same two, so the answers are the same.
"""

from __future__ import annotations

from fp8debug.analysis.engine.base import Engine, Source, reduce_into
from fp8debug.analysis.engine.choice import engine_of
from fp8debug.analysis.engine.local import DuckDBEngine

__all__ = ["DuckDBEngine", "Engine", "Source", "engine_of", "reduce_into"]
