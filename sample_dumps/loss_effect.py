"""What FP8 does to the loss of the pretrained SmolLM2: the evidence behind "no measurable effect" in README.md.

    python sample_dumps/loss_effect.py            # two minutes on two cores; needs what `make.py smollm2` needs

The `x` of the named layers is replaced by its value after a cast to E4M3 and back, scaled by its own amax (current
scaling), in the forward pass. The loss of the same windows of text is compared, so only the casts differ.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import finetune_smollm2 as example

E4M3_MAX = 448.0
PATTERNS = (r"\.11\.mlp\.down_proj$", r"\.10\.mlp\.down_proj$", r"layers\.")


def fake_e4m3(x: Tensor) -> Tensor:
    """`x` as the GEMM would see it after current scaling to E4M3, same shape, FP32."""
    seen = x.to(torch.bfloat16).float()
    scale = E4M3_MAX / seen.abs().max()
    return (seen * scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float() / scale


@torch.no_grad()
def losses(model: nn.Module, tokens: Tensor, pattern: str | None, windows: int) -> Tensor:
    """Loss of each of `windows` windows of 128 tokens, (windows,), with `x` of the layers that match cast."""
    handles = [
        module.register_forward_pre_hook(lambda _, inputs: (fake_e4m3(inputs[0]),))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and pattern is not None and re.search(pattern, name)
    ]
    data = example.batches(tokens, 1, 128, seed=7)
    found = torch.tensor([float(example.loss_of(model, *next(data))) for _ in range(windows)])
    for handle in handles:
        handle.remove()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Loss of SmolLM2 with the x of some layers cast to E4M3.")
    parser.add_argument("patterns", nargs="*", default=PATTERNS, help="regexes of layers, each tried by itself")
    parser.add_argument("--windows", type=int, default=24, help="windows of 128 tokens")
    args = parser.parse_args()

    model, tokens = example.load_model().eval(), example.load_tokens("hamlet")
    base = losses(model, tokens, None, args.windows)
    print(f"{'BF16':32} loss {base.mean():.4f}")
    for pattern in args.patterns:
        change = losses(model, tokens, pattern, args.windows) - base
        print(f"{pattern:32} change {change.mean():+.4f} +- {change.std() / len(change) ** 0.5:.4f} nats", flush=True)


if __name__ == "__main__":
    main()
