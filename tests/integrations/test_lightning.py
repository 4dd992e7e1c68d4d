"""Lightning: by callback, and as an unmodified script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis import open_run


@pytest.mark.captures(
    case="Lightning 2.x",
    how="fp8debug.integrations.lightning.Fp8DebugCallback",
    sees="x, w, dy, dw by the Trainer's own steps, each micro-batch apart; names without the attribute on request",
    limits="validation before the training is not seen",
)
def test_callback(tmp_path: Path, run_script: Any, weight_gradient_error: Any) -> None:
    bare = json.loads(run_script(tmp_path, "lightning_trainer.py").splitlines()[-1])
    watched = json.loads(run_script(tmp_path, "lightning_trainer.py", "--callback", "run", "--strip").splitlines()[-1])
    assert watched == bare
    with open_run(tmp_path / "run") as run:
        assert run.manifest.status == "closed"
        steps = run.con.execute("select step, loss, n_microbatches from steps order by step").fetchall()
        assert [row[1] for row in steps] == pytest.approx(np.reshape(bare["losses"], (3, 2)).mean(1).tolist(), rel=1e-5)
        assert [(row[0], row[2]) for row in steps] == [(0, 2), (1, 2), (2, 2)]
        query = "select distinct layer, tensor from tensors order by all"
        tensors = ("dw", "dy", "w", "x")
        assert run.con.execute(query).fetchall() == [(layer, tensor) for layer in "02" for tensor in tensors]
        assert weight_gradient_error(run.con, "0", 1) < 1e-6


@pytest.mark.captures(
    case="Lightning 2.x",
    how="fp8debug attach train.py",
    sees="the same without a change to the script, names with the attribute; bf16-mixed",
    limits="",
)
def test_unmodified_script(tmp_path: Path, run_script: Any) -> None:
    options = ["--every", "1", "--out", "run", "-q"]
    output = run_script(tmp_path, "lightning_trainer.py", "--precision", "bf16-mixed", attach=options)
    losses = np.reshape(json.loads(output.splitlines()[-1])["losses"], (3, 2))
    with open_run(tmp_path / "run") as run:
        steps = run.con.execute("select loss from steps order by step").fetchall()
        assert [row[0] for row in steps] == pytest.approx(losses.mean(1).tolist(), rel=0.01)
        query = "select distinct layer, gemm_dtype from tensors order by all"
        assert run.con.execute(query).fetchall() == [("net.0", "bfloat16"), ("net.2", "bfloat16")]
