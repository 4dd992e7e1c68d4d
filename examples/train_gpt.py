"""Train a small byte-level GPT on the source text of Python's own standard library: plain PyTorch, BF16 autocast, CPU.

    python examples/train_gpt.py                          # 300 steps, about a minute on two cores
    python examples/train_gpt.py --steps 100 --batch 8 --accumulate 2 --activation swiglu
    fp8debug attach examples/train_gpt.py --steps 200     # the same, watched: not a line here knows of it

Four blocks of width 128, 0.87 M parameters, 17 Linear layers (21 with swiglu). It prints `step N loss X` every ten
steps and a validation loss at the end, on stdout.

`--planted-outlier` plants a fault that BF16 cannot feel and one FP8 scale per tensor cannot survive. In the input of
the two layers of `PLANTED_LAYERS`, channel `PLANTED_CHANNEL` is 2**17 = 131,072 times its neighbours: the gain of the
LayerNorm before the layer is multiplied by that, the column of the layer's weight which reads the channel is divided
by it. A power of two only moves exponents, so every product, and with it the layer's output, is what it was.
AdamW would undo the plant in one step (its step is as long for a weight of 1e-7 as for one of 1e-2), so the planted
gain and column are frozen: their gradient is masked to zero. Weight decay shrinks the column as it does the others.

`--growing-outlier head` or `middle` lets such a fault grow while the training goes on, to 2**20: in the last Linear,
where it ruins the loss of an FP8 training, or in one layer in the middle, whose harm the residual stream absorbs.
"""

from __future__ import annotations

import argparse
import math
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCAB = 256  # bytes
PLANTED_LAYERS = ("blocks.1.fc1", "blocks.2.qkv")
PLANTED_CHANNEL = 7
PLANTED_FACTOR = 2.0**17
GROWN_FACTOR = 2.0**20
GROWING_LAYERS = {"head": "head", "middle": "blocks.1.fc1"}


# The text -------------------------------------------------------------------------------------------------------------


def load_text(max_bytes: int = 16_000_000) -> Tensor:
    """The standard library's .py files without its tests, in name order, as one uint8 tensor (about 12 MB)."""
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    pieces: list[bytes] = []
    for folder, subfolders, names in os.walk(sysconfig.get_path("stdlib")):
        subfolders[:] = sorted(name for name in subfolders if name not in left_out)
        pieces += [Path(folder, name).read_bytes() for name in sorted(names) if name.endswith(".py")]
    text = bytearray(b"".join(pieces)[:max_bytes])
    if not text:
        raise SystemExit(f"no .py file below {sysconfig.get_path('stdlib')}: this Python ships without its sources")
    return torch.frombuffer(text, dtype=torch.uint8)


def batches(text: Tensor, batch: int, seq: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless random windows: inputs and the same shifted by one, both (batch, seq) int64."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(seq + 1)
    while True:
        starts = torch.randint(len(text) - seq, (batch, 1), generator=generator)
        window = text[starts + offsets].long()
        yield window[:, :-1], window[:, 1:]


# The model ------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and added to the residual stream."""

    def __init__(self, d: int, heads: int, activation: str) -> None:
        super().__init__()
        hidden = 4 * d if activation != "swiglu" else 32 * round(8 * d / 3 / 32)  # same parameters with three matrices
        self.heads, self.activation = heads, activation
        self.ln1 = nn.LayerNorm(d, bias=False)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.proj = nn.Linear(d, d, bias=False)
        self.ln2 = nn.LayerNorm(d, bias=False)
        self.fc1 = nn.Linear(d, hidden, bias=False)
        if activation == "swiglu":
            self.gate = nn.Linear(d, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        # Written out: at this size three times faster on a CPU than the fused kernel's backward.
        scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        attended = scores.masked_fill(future, -math.inf).softmax(3) @ v
        x = x + self.proj(attended.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))

    def mlp(self, x: Tensor) -> Tensor:
        h: Tensor = self.fc1(x)
        if self.activation == "gelu":
            h = F.gelu(h)
        elif self.activation == "relu":
            h = F.relu(h)
        elif self.activation == "relu2":
            h = F.relu(h).square()
        else:
            h = F.silu(self.gate(x)) * h
        out: Tensor = self.fc2(h)
        return out


class GPT(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, layers: int, d: int, heads: int, seq: int, activation: str) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB, d)
        self.position = nn.Embedding(seq, d)
        self.blocks = nn.ModuleList(Block(d, heads, activation) for _ in range(layers))
        self.ln = nn.LayerNorm(d, bias=False)
        self.head = nn.Linear(d, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (batch, t) int64 -> logits (batch, t, VOCAB)."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.ln(x))
        return logits


ACTIVATIONS = ("gelu", "relu", "relu2", "swiglu")


def build_model(
    activation: str = "gelu",
    *,
    layers: int = 4,
    d: int = 128,
    heads: int = 4,
    seq: int = 128,
    seed: int = 0,
    zero_init: bool = False,
    planted_outlier: bool = False,
) -> GPT:
    """A GPT with GPT-2's initialisation; `zero_init` starts the two projections into the residual stream at zero."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r}: expected one of {', '.join(ACTIVATIONS)}")
    torch.manual_seed(seed)
    model = GPT(layers, d, heads, seq, activation)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            into_residual = name.endswith(("proj.weight", "fc2.weight"))
            std = 0.02 / math.sqrt(2 * layers) if into_residual else 0.02
            nn.init.normal_(parameter, std=0.0 if into_residual and zero_init else std)
    if planted_outlier:
        for name in PLANTED_LAYERS:
            plant_outlier(model, name)
    return model


def plant_outlier(model: GPT, layer: str) -> None:
    """Make PLANTED_CHANNEL of the layer's input PLANTED_FACTOR times larger, exactly compensated, and keep it so."""
    OutlierChannel(model, layer).multiply(PLANTED_FACTOR)


class OutlierChannel:
    """PLANTED_CHANNEL of a layer's input, which comes out of a LayerNorm: out of the optimizer's reach from now on."""

    def __init__(self, model: GPT, layer: str) -> None:
        linear = model.get_submodule(layer)
        norm = model.get_submodule(layer.replace("qkv", "ln1").replace("fc1", "ln2").replace("head", "ln"))
        assert isinstance(linear, nn.Linear) and isinstance(norm, nn.LayerNorm)
        self.gain, self.weight, self.exponent = norm.weight, linear.weight, 0
        channel = self.channel = torch.arange(linear.in_features) == PLANTED_CHANNEL
        for parameter in (self.gain, self.weight):
            parameter.register_hook(lambda grad: grad.masked_fill(channel, 0.0))

    @torch.no_grad()
    def multiply(self, factor: float) -> None:
        """By a power of two, compensated in the layer's weight."""
        self.gain[self.channel] *= factor
        self.weight[:, self.channel] /= factor

    def grow(self, done: float) -> None:
        """To its size when this share of the training is done: GROWN_FACTOR from 0.4 on."""
        exponent = int(min(1.0, done / 0.4) * math.log2(GROWN_FACTOR))
        self.multiply(2.0 ** (exponent - self.exponent))
        self.exponent = exponent


# The training ---------------------------------------------------------------------------------------------------------


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per byte; the GEMMs run in BF16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def lr_at(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 20 steps, then a cosine down to a tenth."""
    warmup = min(1.0, (step + 1) / 20)
    return peak * warmup * (0.55 + 0.45 * math.cos(math.pi * step / steps))


@torch.no_grad()
def evaluate(model: nn.Module, data: Iterator[tuple[Tensor, Tensor]], count: int = 8) -> float:
    """Mean loss over `count` batches."""
    model.eval()
    total = sum(float(loss_of(model, *next(data))) for _ in range(count))
    model.train()
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small byte-level GPT on Python's own standard library.")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a micro-batch")
    parser.add_argument("--seq", type=int, default=128, help="bytes in a sequence")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="gelu")
    parser.add_argument("--zero-init", action="store_true", help="start the projections into the residual at zero")
    parser.add_argument("--planted-outlier", action="store_true", help="plant the fault described in the docstring")
    parser.add_argument("--growing-outlier", choices=GROWING_LAYERS, help="let a fault grow there, see the docstring")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order of the text")
    args = parser.parse_args()

    text = load_text()
    cut = len(text) * 9 // 10
    train = batches(text[:cut], args.batch, args.seq, args.seed)
    validation = batches(text[cut:], args.batch, args.seq, args.seed + 1)

    model = build_model(
        args.activation,
        seq=args.seq,
        seed=args.seed,
        zero_init=args.zero_init,
        planted_outlier=args.planted_outlier,
    )
    outlier = OutlierChannel(model, GROWING_LAYERS[args.growing_outlier]) if args.growing_outlier else None
    matrices = [p for p in model.parameters() if p.dim() == 2]
    gains = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))

    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, args.steps, args.lr)
        if outlier is not None:
            outlier.grow(step / args.steps)
        total = 0.0
        for _ in range(args.accumulate):
            loss = loss_of(model, *next(train)) / args.accumulate
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step} loss {total:.4f}", flush=True)

    print(f"validation loss {evaluate(model, validation):.4f}", flush=True)


if __name__ == "__main__":
    main()
