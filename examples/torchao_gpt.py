"""Train the small GPT of train_gpt.py in torchao's float8 (emulated: any CPU), and see what its GEMMs really read.

    fp8debug attach --every 10 examples/torchao_gpt.py && fp8debug report    # needs pip install 'fp8debug[torchao]'

Not a line of the script knows of fp8debug. Beside x, w and dy in high precision the run holds the payload: the FP8
codes and scales that torchao made of them (`fp8debug sql "from payloads"`). About a minute.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from train_gpt import batches, build_model, load_text, loss_of


def is_inner(module: nn.Module, name: str) -> bool:
    """Which layers go to FP8: all but the output layer, as is usual."""
    return isinstance(module, nn.Linear) and name != "head"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT in torchao's float8.")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = convert_to_float8_training(
        build_model("gelu"), config=Float8LinearConfig(emulate=True), module_filter_fn=is_inner
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = batches(load_text(4_000_000), 8, 128, seed=0)
    for step in range(options.steps):
        loss = loss_of(model, *next(windows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
