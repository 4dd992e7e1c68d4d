"""Accelerate, with and without FP8: attached before and after `prepare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8debug.analysis import open_run


@pytest.mark.captures(
    case="Accelerate",
    how='fp8debug.attach before or after `prepare`, mixed_precision="fp8" with torchao',
    sees="x, w, dy of every Linear, the payload of those that run in FP8; attached before, the converted layers again",
    limits="",
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_fp8(when: str, tmp_path: Path, run_script: Any) -> None:
    """Of four layers the first and the last stay in BF16, as Accelerate's default has it."""
    output = run_script(tmp_path, "accelerate_loop.py", "--fp8", "--attach", when).splitlines()
    assert json.loads(output[-2]) == []
    with open_run(tmp_path / "run") as run:
        steps = run.con.execute("select loss, n_microbatches from steps order by step").fetchall()
        losses = json.loads(output[-1])
        assert [row[0] for row in steps] == pytest.approx(
            [(a + b) / 2 for a, b in zip(losses[::2], losses[1::2], strict=True)]
        )
        assert [row[1] for row in steps] == [2, 2, 2, 2]
        asked = run.con.execute("select distinct layer, precision_asked from tensors order by all").fetchall()
        eight = ["float8_e4m3fn", "float8_e5m2"]
        assert asked == [("0", "bfloat16"), *((layer, word) for layer in "24" for word in eight), ("6", "bfloat16")]
        payloads = run.con.execute("select layer, tensor, fmt, count(*) from payloads group by all order by all")
        wanted = [("dy", "E5M2", 8), ("w", "E4M3", 4), ("x", "E4M3", 8)]
        assert payloads.fetchall() == [(layer, *row) for layer in "24" for row in wanted]
        reattached = run.con.execute("select layer from events where kind = 'reattached' order by layer").fetchall()
        assert reattached == ([("2",), ("4",)] if when == "before" else [])


@pytest.mark.captures(
    case="Accelerate",
    how="fp8debug attach train.py",
    sees="the same without a change to the script; losses as the step's, though each is divided before its backward",
    limits="",
)
def test_unmodified_script(tmp_path: Path, run_script: Any) -> None:
    bare = run_script(tmp_path, "accelerate_loop.py")
    assert run_script(tmp_path, "accelerate_loop.py", attach=["--out", "run", "-q"]) == bare
    losses = json.loads(bare)
    with open_run(tmp_path / "run") as run:
        steps = run.con.execute("select loss from steps order by step").fetchall()
        assert [row[0] for row in steps] == pytest.approx(
            [(a + b) / 2 for a, b in zip(losses[::2], losses[1::2], strict=True)]
        )
        assert run.con.execute("select count(distinct layer) from tensors").fetchall() == [(4,)]
