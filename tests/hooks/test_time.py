"""Steps, micro-batches, calls and passes of real trainings, attached to by hand and found in an unmodified script."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded, Zygote


def steps(n: int, one: str) -> list[str]:
    """Keys of `n` steps: lines `microbatch/call pass tensors`, several tensors a line, `S` the step."""
    keys = []
    for step in range(n):
        for line in filter(None, map(str.strip, one.splitlines())):
            where, pass_, *tensors = line.split()
            where = where if where.count("/") == 2 else f"{step}/{where}"
            keys += [f"{where.replace('S', str(step))} {pass_} {tensor}" for tensor in tensors]
    return keys


NET = """
    0/0 forward a.x a.w b.x b.w
    0/0 backward b.dy a.dy
"""
NET_MICROBATCHES = """
    1/0 forward a.x b.x
    1/0 backward b.dy a.dy
    2/0 forward a.x b.x
    2/0 backward b.dy a.dy
"""
NET_EVAL = "0/0 eval a.x b.x"  # the first pass alone
CHECKPOINT_FORWARD = """
    0/0 forward first.x first.w block.0.x block.0.w block.2.x block.2.w head.x head.w
    0/0 backward head.dy
"""


@dataclass(frozen=True)
class Expected:
    """What a run must have recorded. Names as `attach` gives them; `renamed` says how an unmodified script's differ."""

    keys: list[str]
    n_microbatches: tuple[int, ...] = (1, 1)
    lr: tuple[float | None, ...] | float = 0.125
    skipped: tuple[int, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    clips: bool = False
    problem: str = ""


SLOW_DISK = "fp8debug: the training has ended; what was recorded is still being written"
"""Said where closing takes longer than a second, as it may on a busy machine."""

EXPECTED = {
    "grad_scaler": Expected(steps(3, NET), (1, 1, 1), lr=(0.125, None, 0.125), skipped=(1,)),
    "muon_and_adamw": Expected(steps(2, NET), lr=0.25, clips=True),
    "optimizer_in_backward": Expected(steps(2, NET)),
    "lbfgs": Expected(steps(2, NET + NET_MICROBATCHES), (3, 3), lr=0.5),
    "accumulation": Expected(steps(2, NET + NET_MICROBATCHES), (3, 3), clips=True),
    "evaluation": Expected(steps(2, NET + NET_EVAL)),
    "criteria": Expected(steps(2, NET)),
    "learnt_criterion": Expected(
        steps(
            2,
            """
            0/0 forward net.a.x net.a.w net.b.x net.b.w criterion.score.x criterion.score.w
            0/0 backward criterion.score.dy net.b.dy net.a.dy
            """,
        ),
        renamed={"net.": "Net#0.", "criterion.": "Scorer#1."},
    ),
    "method": Expected(
        steps(2, "0/0 forward body.0.x body.0.w head.x head.w\n 0/0 backward head.dy body.0.dy"),
    ),
    # An optimizer step is a step: critic and generator take turns. The generator ran once, in the critic's turn, and
    # its gradient of the next step belongs to that pass.
    "gan": Expected(
        [
            key
            for step in (0, 2)
            for key in (
                *(f"{step}/0/0 forward d.fc.x", f"{step}/0/0 forward d.fc.w", f"{step}/0/0 backward d.fc.dy"),
                *(f"{step}/1/0 forward g.fc.x", f"{step}/1/0 forward g.fc.w"),
                *(f"{step}/1/0 forward d.fc.x", f"{step}/1/0 backward d.fc.dy"),
                *(f"{step + 1}/0/0 forward d.fc.x", f"{step + 1}/0/0 forward d.fc.w"),
                *(f"{step + 1}/0/0 backward d.fc.dy", f"{step}/1/0 backward g.fc.dy"),
            )
        ],
        (2, 1, 2, 1),
        renamed={"d.": "Critic#0.", "g.": "Generator#1."},
    ),
    # The teacher's pass stands between two steps, so it belongs to the one before; one pass a step is kept.
    "distillation": Expected(
        [
            *steps(1, "0/0 eval teacher.a.x teacher.b.x"),
            *(key.replace(" a.", " student.a.").replace(" b.", " student.b.") for key in steps(2, NET)),
            *("1/0/0 eval teacher.a.x", "1/0/0 eval teacher.b.x"),
            *(key.replace(" a.", " student.a.").replace(" b.", " student.b.") for key in steps(3, NET)[-6:]),
        ],
        (1, 1, 1),
        renamed={"teacher.": "Teacher#0.", "student.": "Student#1."},
    ),
    "copied": Expected(steps(2, NET)),
    "wrapped": Expected(steps(2, NET)),
    "wrapped_late": Expected(steps(1, NET_EVAL) + steps(2, NET)),
    "shared": Expected(
        steps(
            2,
            """
            0/0 forward twice.x twice.w
            0/1 forward twice.x
            0/0 forward tied.x tied.w
            0/0 backward tied.dy
            0/1 backward twice.dy
            0/0 backward twice.dy
            """,
        )
    ),
    "frozen": Expected(steps(2, "0/0 forward a.x a.w b.x b.w\n 0/0 backward b.dy")),
    # The recomputation stops once everything saved is there again: the last layer of the block does not run.
    "checkpointed": Expected(
        steps(
            2,
            CHECKPOINT_FORWARD
            + """
            0/0 backward block.2.dy
            0/0 recompute block.0.x
            0/0 backward block.0.dy first.dy
            """,
        )
    ),
    "checkpointed_reentrant": Expected(
        steps(
            2,
            CHECKPOINT_FORWARD
            + """
            0/0 recompute block.0.x block.2.x
            0/0 backward block.2.dy block.0.dy first.dy
            """,
        )
    ),
    "checkpointed_loss": Expected(
        steps(
            2,
            """
            0/0 forward a.x a.w b.x b.w
            0/0 recompute a.x b.x
            0/0 backward b.dy a.dy
            """,
        )
    ),
    "eval_mode_only": Expected(steps(1, NET_EVAL), (), problem="call model.train()"),
    "forked_worker": Expected(steps(2, NET)),
}
CASES = pytest.mark.parametrize("name", EXPECTED)


def check_steps(run: Recorded, expected: Expected, facts: dict[str, Any], *, measured: bool) -> None:
    """The `steps` table against what happened; `measured`: norms are taken from the gradients where nothing clips."""
    rows = run.rows("steps")
    n = len(expected.n_microbatches)
    assert [row["step"] for row in rows] == list(range(n))
    assert [row["n_microbatches"] for row in rows] == list(expected.n_microbatches)
    assert [row["skipped"] for row in rows] == [step in expected.skipped for step in range(n)]
    assert [row["lr"] for row in rows] == (list(expected.lr) if isinstance(expected.lr, tuple) else [expected.lr] * n)
    assert all(row["sampled"] and row["segment"] == row["rank"] == 0 and row["duration_s"] >= 0 for row in rows)
    for row, losses in zip(rows, facts["losses"], strict=n > 0):
        assert row["losses"] == losses  # the loss scale is a power of two, so nothing is rounded
        assert row["loss"] == pytest.approx(math.fsum(losses) / len(losses), rel=1e-15)
        assert row["loss_source"] == "backward"
    source = "clip_grad_norm_" if expected.clips else "gradients" if measured and "norms" in facts else None
    if source:
        known = [step for step in range(n) if step not in expected.skipped]
        assert [rows[step]["grad_norm"] for step in known] == pytest.approx(
            [facts["norms"][s] for s in known], rel=1e-6
        )
        assert [row["grad_norm_source"] for row in rows] == [source if step in known else None for step in range(n)]
        assert all(rows[step]["grad_norm"] is None for step in expected.skipped)
    elif not measured:
        assert all(row["grad_norm"] is row["grad_norm_source"] is None for row in rows)


@CASES
def test_attached(name: str, trainings: ModuleType, attach: Attach, recorded: Recorded) -> None:
    expected = EXPECTED[name]
    sessions = []
    torch.manual_seed(0)
    facts = getattr(trainings, name)(lambda model: sessions.append(attach(model)))
    summary = sessions[0].close()
    assert recorded.keys() == expected.keys
    check_steps(recorded, expected, facts, measured=False)
    assert (summary.n_records, summary.n_steps) == (len(expected.keys), len(expected.n_microbatches))
    assert [expected.problem in problem for problem in summary.problems] == [True] * bool(expected.problem)


@CASES
def test_unmodified(name: str, zygote: Zygote, read_run: Callable[[Path], Recorded], tmp_path: Path) -> None:
    expected = EXPECTED[name]
    facts = zygote.run(name, tmp_path / name)
    run = read_run(tmp_path / name / "run")

    def rename(key: str) -> str:
        where, pass_, tensor = key.split()
        found = next((old for old in expected.renamed if tensor.startswith(old)), "")
        return f"{where} {pass_} {expected.renamed.get(found, '')}{tensor.removeprefix(found)}"

    keys = [rename(key) for key in expected.keys]
    assert run.keys() == keys
    check_steps(run, expected, facts, measured=True)
    assert [event["kind"] for event in run.rows("events")] == ["evaluation_only"] * bool(expected.problem)
    assert [expected.problem in problem for problem in facts["problems"]] == [True] * bool(expected.problem)
    manifest = run.manifest
    layers = {re.sub(r"\.\w+$", "", key.split()[2]) for key in keys}
    assert manifest["status"] == "closed"
    assert {layer["name"] for layer in manifest["layers"] if layer["matched"]} == layers
    assert len(manifest["layers"]) == len(layers), "no layer is listed twice"
    assert [line for line in facts["said"] if line != SLOW_DISK] == [
        f"fp8debug: recording to {run.path}",
        f"fp8debug: matched {len(layers)} of {len(layers)} GEMM layers",
    ]
    if expected.renamed:
        assert manifest["roots"] == [prefix.rstrip(".") for prefix in expected.renamed.values()]
    elif name == "wrapped":
        assert [layer["raw_name"] for layer in manifest["layers"]] == ["module.a", "module.b"]
