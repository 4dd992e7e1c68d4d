"""The Hugging Face Trainer: by callback, and as an unmodified script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fp8debug.analysis import Run, open_run

N_LAYERS = 2 * 7 + 1
"""q, k, v, o, gate, up and down in two blocks, and the head."""


def one(run: Run, query: str) -> tuple[Any, ...]:
    (row,) = run.con.execute(query).fetchall()
    return tuple(row)


@pytest.mark.captures(
    case="HF Trainer",
    how="fp8debug.integrations.hf.Fp8DebugCallback",
    sees="x, w, dy, dw of every Linear by the Trainer's own steps, each micro-batch apart; loss, gradient norm, lr",
    limits="",
)
def test_callback(tmp_path: Path, run_script: Any, weight_gradient_error: Any) -> None:
    """Accumulation and BF16; the same training as without us, the numbers that the Trainer logs; then a resumed one."""
    bare = json.loads(run_script(tmp_path, "hf_trainer.py", "--bf16").splitlines()[-1])
    watched = json.loads(
        run_script(tmp_path, "hf_trainer.py", "--bf16", "--callback", "run", "--save", "2").splitlines()[-1]
    )
    assert watched == bare
    with open_run(tmp_path / "run") as run:
        assert run.manifest.status == "closed"
        steps = run.con.execute("select step, loss, grad_norm, n_microbatches from steps order by step").fetchall()
        assert [row[0] for row in steps] == [0, 1, 2]
        assert [row[1] for row in steps] == pytest.approx(bare["losses"], rel=1e-6)
        assert [row[2] for row in steps] == pytest.approx(bare["norms"], rel=1e-5)
        assert [row[3] for row in steps] == [2, 2, 2]
        assert one(run, "select count(distinct layer), min(layer), max(layer) from tensors") == (
            N_LAYERS,
            "lm_head",
            "model.layers.1.self_attn.v_proj",
        )
        counts = dict(run.con.execute("select tensor, count(*) from tensors group by tensor").fetchall())
        assert counts == {"x": 6 * N_LAYERS, "dy": 6 * N_LAYERS, "dw": 6 * N_LAYERS, "w": 3 * N_LAYERS}
        assert one(run, "select distinct gemm_dtype from tensors where tensor <> 'dw'") == ("bfloat16",)
        for layer in ("model.layers.0.mlp.up_proj", "lm_head"):
            assert weight_gradient_error(run.con, layer, 1) < 0.01  # BF16 keeps eight bits of the result

    run_script(tmp_path, "hf_trainer.py", "--bf16", "--callback", "again", "--steps", "4", "--resume")
    with open_run(tmp_path / "again") as run:
        assert one(run, "select step, n_microbatches from steps") == (3, 2)


@pytest.mark.captures(
    case="HF Trainer",
    how="fp8debug attach run_clm.py",
    sees="the same without a change to the script; recomputed passes apart, evaluation outside the history",
    limits="a resumed Trainer's steps count from 0: the callback knows its number, or --resume-step says it",
)
def test_unmodified_script(tmp_path: Path, run_script: Any) -> None:
    """Checkpointing, and an evaluation after each step."""
    bare = json.loads(run_script(tmp_path, "hf_trainer.py", "--checkpointing", "--evaluate").splitlines()[-1])
    options = ["--every", "1", "--out", "run", "-q"]
    output = run_script(tmp_path, "hf_trainer.py", "--checkpointing", "--evaluate", attach=options)
    assert json.loads(output.splitlines()[-1]) == bare
    with open_run(tmp_path / "run") as run:
        losses = run.con.execute("select loss from steps order by step").fetchall()
        assert [row[0] for row in losses] == pytest.approx(bare["losses"], rel=1e-6)
        query = "select pass, tensor, count(*) from tensors where layer = 'model.layers.0.mlp.up_proj' group by all"
        assert set(run.con.execute(query).fetchall()) == {
            ("forward", "x", 6),
            ("forward", "w", 3),
            ("recompute", "x", 6),
            ("backward", "dy", 6),
            ("eval", "x", 3),
        }


@pytest.mark.captures(
    case="HF Trainer",
    how="torchrun -m fp8debug attach, two ranks under DDP",
    sees="each rank's own x and dy, w as a replica; names of the unwrapped model",
    limits="",
)
def test_two_ranks(tmp_path: Path, run_script: Any) -> None:
    """That two ranks train the same with and without us is proven of plain DDP, beside the other placements."""
    run_script(tmp_path, "hf_trainer.py", attach=["--every", "1", "--out", "run", "-q"], ranks=2)
    with open_run(tmp_path / "run") as run:
        query = "select rank, tensor, min(placement), count(*) from tensors where layer = 'lm_head' group by all"
        assert set(run.con.execute(query).fetchall()) == {
            (rank, tensor, "replicate" if tensor == "w" else "local", 3 if tensor == "w" else 6)
            for rank in (0, 1)
            for tensor in ("x", "w", "dy")
        }
        assert one(run, "select count(distinct checksum) from tensors where layer = 'lm_head' and tensor = 'w'") == (3,)
