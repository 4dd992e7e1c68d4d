"""The processes of a Ray cluster, one partition each."""

from __future__ import annotations

from typing import Any

from fp8debug.analysis.engine import task
from fp8debug.analysis.engine.base import Source
from fp8debug.analysis.engine.partitioned import Assignment, assignments, merge
from fp8debug.analysis.engine.ray_cluster import Cluster
from fp8debug.analysis.engine.reduction import Reduction
from fp8debug.errors import Fp8DebugError

_PARTITIONS_A_CORE = 2  # so that a slow one keeps no other core waiting
_MIN_ROWS = 500_000
_MAX_RETRIES = 2


class RayEngine:
    """A Ray cluster, which is connected to at once.

    Args:
        address: of a cluster that is there, as `ray.init` takes it; None: start one on the cores of this machine, and
            stop it in `close`.
        n_cores: of a cluster that is started here; None: all of this machine.
        n_partitions: None: as many as keep the cluster's cores busy.
        max_retries: how often a partition is given to another process when one dies.

    Raises:
        UsageError: ray is not installed, or there is no cluster at the address.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        n_cores: int | None = None,
        n_partitions: int | None = None,
        max_retries: int = _MAX_RETRIES,
    ) -> None:
        self._cluster = Cluster(address, n_cores)
        self._n_partitions = n_partitions
        self._max_retries = max_retries

    def fill(self, target: str, reduction: Reduction, source: Source) -> None:
        """Insert the answer into the table `target`."""
        n_cores = self._cluster.n_cores
        if self._n_partitions is None:
            found = assignments(reduction, source, _PARTITIONS_A_CORE * n_cores, _MIN_ROWS)
        else:
            found = assignments(reduction, source, self._n_partitions, min_rows=1)
        merge(target, reduction, source, self._answers(found))

    def close(self) -> None:
        """Stop the cluster if it was started here."""
        self._cluster.close()

    def _answers(self, found: list[Assignment]) -> list[task.Answer]:
        ray: Any = self._cluster.ray
        # By value: the cluster's machines need not have fp8debug.
        ray.cloudpickle.register_pickle_by_value(task)
        try:
            remote = ray.remote(num_cpus=1, max_retries=self._max_retries)(task.answer)
            references = [remote.remote(asked, given, n_threads=1) for asked, given in found]
            answers: list[task.Answer] = ray.get(references)
        except ray.exceptions.RayTaskError as error:
            raise Fp8DebugError(
                f"a partition could not be computed by Ray: {str(error.cause).splitlines()[0]}"
            ) from error
        except ray.exceptions.RayError as error:
            raise Fp8DebugError(
                f"the Ray cluster lost a partition, after {self._max_retries} retries: {_first_line(error)}"
            ) from error
        finally:
            ray.cloudpickle.unregister_pickle_by_value(task)
        return answers


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip()
