"""What a report says of tensors that are not there: only of those that should be, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from fp8debug.analysis import open_run
from fp8debug.analysis.report import build_report

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]
VALUES = np.ones((8, 8), dtype=np.float32)
ABSENT = ("missing_tensor", "evaluation_only", "no_tokens")


def _absences(run: SyntheticRun) -> list[str]:
    run.write()
    with open_run(run.path, threads=1) as opened:
        return [problem.message for problem in build_report(opened).problems if problem.kind in ABSENT]


def test_a_teacher_and_an_idle_expert(new_run: NewRun) -> None:
    run = new_run(tensors=["x", "w", "dy"])
    for tensor in ("x", "w", "dy"):
        run.add("student", tensor, VALUES, step=0)
    run.add("frozen", "x", VALUES, step=0)
    run.add("frozen", "w", VALUES, step=0)
    run.add("teacher", "x", VALUES, step=0, pass_="eval")
    run.add("experts[3]", "x", VALUES[:0], step=0, sampled=False, status="no_tokens")
    assert _absences(run) == [
        "teacher: ran in evaluation only, as a teacher does: recorded, not judged",
        "experts[3]: no token reached it, as an expert that is never chosen",
        "no dy was recorded for frozen: no gradient reached it (frozen, or no backward ran)",
    ]


def test_keys_and_values_belong_to_attention_alone(new_run: NewRun) -> None:
    run = new_run(tensors=["x", "key", "value"], options={"inference": True})
    run.add("mlp", "x", VALUES, step=0, pass_="eval")
    run.add("attention", "key", VALUES, step=0, pass_="eval")
    assert _absences(run) == ["no value was recorded for attention"]


def test_a_stack_is_its_experts(new_run: NewRun, synthetic_run: ModuleType) -> None:
    """Unless it runs as a whole too."""
    names = ["up", "up[0]", "up[1]", "down", "down[0]"]
    run = new_run(tensors=["x"], layers=[synthetic_run.layer_info(name) for name in names])
    for name in ("up[0]", "up[1]", "down", "down[0]"):
        run.add(name, "x", VALUES, step=0)
    run.write()
    with open_run(run.path, threads=1) as opened:
        facts = build_report(opened).run
    assert (facts.n_layers, facts.n_layers_matched) == (4, 4)


def test_keys_that_were_nowhere(new_run: NewRun) -> None:
    run = new_run(tensors=["x", "key"], options={"inference": True})
    run.add("mlp", "x", VALUES, step=0, pass_="eval")
    assert _absences(run) == ["no key was recorded for mlp"]
