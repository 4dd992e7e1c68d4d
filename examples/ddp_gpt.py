"""Train the small GPT of train_gpt.py on two ranks, launched by torchrun under capture. CPU (gloo), about a minute.

    fp8debug attach --every 10 -- torchrun --nproc-per-node 2 examples/ddp_gpt.py && fp8debug report

Not a line of the script knows of fp8debug. Each rank records its own x and dy; w, which is the same on both, is counted
on rank 0, and the report says if the others disagree. Ranks are merged when the run is read: none waits for another.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from train_gpt import batches, build_model, load_text, loss_of


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT under DistributedDataParallel.")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DistributedDataParallel(build_model("gelu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = batches(load_text(4_000_000), 8, 128, seed=rank)
    for step in range(options.steps):
        loss = loss_of(model, *next(windows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
