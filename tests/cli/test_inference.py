"""The inference check from the command line's side: scripts, saved models, text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCRIPT = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 8)

    def forward(self, x, targets=None):
        logits = self.head(torch.relu(self.body(x)))
        loss = None if targets is None else nn.functional.cross_entropy(logits, targets)
        return logits, loss

torch.manual_seed(0)
teacher = Net().eval().requires_grad_(False)
net = Net()
assert sys.argv[1:] == ["--data", "here"]
print("on standard output")
teacher(torch.ones(4, 16))
net(torch.ones(4, 16), targets=torch.arange(4))
raise SystemExit("beyond the first training forward")
"""
VERIFY = ("-m", "fp8debug", "verify", "--inference")
SAVE = """
from transformers import LlamaConfig, LlamaForCausalLM
import torch
torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
model.to(torch.bfloat16).save_pretrained("model")
"""


def test_a_script_runs_until_its_first_training_forward(warm_python: Any, tmp_path: Path) -> None:
    """With its own first batch, then with another one; teachers in evaluation mode are passed by."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "batch.json").write_text(json.dumps({"x": [[0.5] * 16] * 3}))
    own = warm_python.run(tmp_path, *VERIFY, "train.py", "--data", "here")
    assert own.returncode == 0, own.stderr
    assert own.stdout.startswith("Inference check of train.py\n") and own.stderr == "on standard output\n"
    assert "on the input 4x16, targets 4" in own.stdout and "Loss: of the model itself" in own.stdout
    assert max(map(len, own.stdout.splitlines())) <= 80
    options = ("--batch", "batch.json", "--json")
    other = warm_python.run(tmp_path, *VERIFY, *options, "train.py", "--data", "here")
    found = json.loads(other.stdout)
    assert (found["batch"], found["loss"]) == ("x 3x16", None)
    assert [layer["name"] for layer in found["layers"]] == ["body", "head"]
    assert [variant["text"] for variant in found["variants"]] == ["current", "current, only w"]
    assert found["variants"][0]["outputs"]["sqnr_db"] > 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch.json", "train.py"]


def test_a_saved_llama(warm_trainers: Any, tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(SAVE)
    assert warm_trainers.run(tmp_path, "save.py").returncode == 0
    (tmp_path / "batch.json").write_text(json.dumps({"input_ids": list(range(24)), "labels": list(range(24))}))
    done = warm_trainers.run(tmp_path, *VERIFY, "--batch", "batch.json", "--json", "model")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["precision"], found["batch"]) == ("bfloat16", "input_ids 1x24, labels 1x24")
    assert len(found["layers"]) == 15 and found["layers"][-1]["name"] == "lm_head"
    assert abs(found["loss"] - 4.16) < 0.2, "log(64): it knows nothing yet"
    assert found["origin"]["verdict"] == "spread"
    outputs = found["variants"][0]["outputs"]
    assert 15 < outputs["sqnr_db"] < 32 and 0 < outputs["mean_kl"] < 0.05 and outputs["n_positions"] == 24
