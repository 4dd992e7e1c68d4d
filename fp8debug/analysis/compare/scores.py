"""Benchmark scores of two trainings, task by task: the third signal, when the loss looks normal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAG = 0.02
"""A score that is lower by more than this share of the baseline's lags; less is what another seed would do."""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One benchmark, higher is better."""

    task: str
    baseline: float
    run: float
    lags: bool

    @property
    def difference(self) -> float:
        """Run minus baseline, in the task's own unit."""
        return self.run - self.baseline


@dataclass(frozen=True, slots=True)
class Scores:
    """Both runs' last scores."""

    tasks: tuple[TaskScore, ...]
    """Those that both have, the one that lags most first."""
    only_in_one: tuple[str, ...]
    verdict: str
    """none_given | none_lags | some_lag | all_lag"""

    @property
    def lagging(self) -> tuple[TaskScore, ...]:
        """Those that lag."""
        return tuple(task for task in self.tasks if task.lags)


def compare_scores(baseline: Mapping[str, float], run: Mapping[str, float]) -> Scores:
    """Compare the tasks that both have."""
    tasks = [
        TaskScore(task, baseline[task], run[task], run[task] < baseline[task] - LAG * abs(baseline[task]))
        for task in sorted(baseline.keys() & run.keys())
    ]
    tasks.sort(key=lambda score: score.difference / (abs(score.baseline) or 1.0))
    n_lagging = sum(score.lags for score in tasks)
    verdict = "none_given"
    if tasks:
        verdict = "none_lags" if not n_lagging else "all_lag" if n_lagging == len(tasks) else "some_lag"
    return Scores(tuple(tasks), tuple(sorted(baseline.keys() ^ run.keys())), verdict)
