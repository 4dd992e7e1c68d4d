"""A model under torch.compile: not captured yet, said so, and trained as without us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def test_a_compiled_model_trains_on_and_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    bare = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, check=True)
    attach = [sys.executable, "-W", "error", "-m", "fp8debug", "attach", "--out", str(tmp_path / "run"), str(script)]
    watched = subprocess.run(attach, capture_output=True, text=True, check=False)
    assert (watched.returncode, watched.stdout) == (0, bare.stdout), watched.stderr
    assert "NOTHING WAS RECORDED" in watched.stderr
    assert "inside torch.compile, where they are not seen" in watched.stderr
    assert "call model.train()" not in watched.stderr
