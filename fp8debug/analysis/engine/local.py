"""DuckDB in this process."""

from __future__ import annotations

from fp8debug.analysis.engine.base import Source
from fp8debug.analysis.engine.reduction import Reduction


class DuckDBEngine:
    """All records at once, or one partition after the other, which takes less memory.

    Args:
        n_partitions: 1: all at once, in the run's own connection.
    """

    def __init__(self, n_partitions: int = 1) -> None:
        self._n_partitions = n_partitions

    def fill(self, target: str, reduction: Reduction, source: Source) -> None:
        """Insert the answer into the table `target`."""
        if self._n_partitions == 1:
            query = f"with partials as ({reduction.partial}) {reduction.merge}"
            source.prepare(query).execute(f"insert into {target} by name {query}")
            return
        from fp8debug.analysis.engine.partitioned import assignments, merge  # imports pyarrow
        from fp8debug.analysis.engine.task import answer

        found = assignments(reduction, source, self._n_partitions, min_rows=1)
        merge(target, reduction, source, [answer(*assignment) for assignment in found])

    def close(self) -> None:
        """Nothing was started."""
