"""What emulated FP8 training does to the demo GPT: final losses, and their ratio to BF16's.

    python benchmarks/emulated_training.py [--steps 300] [--seeds 3] [--markdown docs/emulation.md]

The final loss is the mean of the last ten steps' training losses, in nats per byte. A seed decides the weights and the
order of the text, so that a ratio compares two trainings that see the same. Every training has a process and a single
thread, one after the other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import ModuleType

BASE = "BF16"
LAST = 10
MARGIN = "delayed:amax_history_len=16,fp8_format=E4M3,margin={}"


@dataclass(frozen=True)
class Variant:
    """A way to train."""

    recipe: str | None = None
    only: tuple[str, ...] = ()
    least: float = 0.0
    most: float = 9.0
    """Bounds of the mean ratio to BF16."""


VARIANTS = {
    BASE: Variant(),
    "current": Variant("current", least=0.99, most=1.01),
    "delayed": Variant("delayed", most=1.02),
    "E4M3 gradients, margin 8": Variant(MARGIN.format(8), ("dy",), most=1.03),
    "E4M3 gradients, margin 14": Variant(MARGIN.format(14), ("dy",), least=1.2),
    "margin 8, window 1024": Variant("delayed:fp8_format=E4M3,margin=8", ("dy",)),
}
"""`only` the gradients are cast in the last three: x and w stay in BF16."""


def train(
    example: ModuleType,
    recipe: str | None,
    only: tuple[str, ...],
    *,
    steps: int,
    seed: int,
    batch: int = 16,
    seq: int = 128,
    last: int = LAST,
    **size: int,
) -> float:
    """Train the example's GPT as its own `main` does; mean loss of the `last` steps, in nats per byte."""
    import torch

    import fp8debug

    data = example.batches(example.load_text(), batch, seq, seed)
    model = example.build_model(seq=seq, seed=seed, **size)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    gains = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    losses: list[float] = []
    with nullcontext() if recipe is None else fp8debug.emulate(model, recipe, only=only, quiet=True):
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = example.lr_at(step, steps, 2e-3)
            loss = example.loss_of(model, *next(data))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    return mean(losses[-last:])


def load_example() -> ModuleType:
    """examples/train_gpt.py as a module."""
    path = Path(__file__).resolve().parent.parent / "examples" / "train_gpt.py"
    spec = importlib.util.spec_from_file_location("train_gpt", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_gpt"] = module
    spec.loader.exec_module(module)
    return module


def run_alone(name: str, steps: int, seed: int) -> dict[str, float]:
    """One training in a process of its own: `loss` and `cpu_s`."""
    command = [sys.executable, __file__, "--steps", str(steps), "--worker", name, str(seed)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{name}, seed {seed}:\n{done.stderr}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def worker(name: str, steps: int, seed: int) -> None:
    """Inside that process: train and print the answer."""
    started_s, variant = time.process_time(), VARIANTS[name]
    loss = train(load_example(), variant.recipe, variant.only, steps=steps, seed=seed)
    print(json.dumps({"loss": loss, "cpu_s": time.process_time() - started_s}))


@dataclass(frozen=True)
class Row:
    """One variant over all seeds."""

    name: str
    losses: list[float]
    ratios: list[float]
    cpu_s: float

    @property
    def ok(self) -> bool:
        """Whether the mean ratio is what is expected."""
        variant = VARIANTS[self.name]
        return variant.least <= mean(self.ratios) <= variant.most

    @property
    def cells(self) -> list[str]:
        """Name, loss, ratio with its spread, expected, CPU time."""
        variant = VARIANTS[self.name]
        bounds = [f"from {variant.least}"] if variant.least else []
        bounds += [f"to {variant.most}"] if variant.most < 9 else []
        ratio = f"{mean(self.ratios):.3f} ({min(self.ratios):.3f} to {max(self.ratios):.3f})"
        return [self.name, f"{mean(self.losses):.3f}", ratio, " ".join(bounds), f"{self.cpu_s:.0f}"]


HEAD = ["variant", "loss", f"ratio to {BASE}", "expected", "CPU s"]


def rows(results: dict[str, list[dict[str, float]]]) -> Iterator[Row]:
    """Compare all variants with BF16, seed by seed."""
    base = [run["loss"] for run in results[BASE]]
    for name, runs in results.items():
        losses = [run["loss"] for run in runs]
        ratios = [loss / reference for loss, reference in zip(losses, base, strict=True)]
        yield Row(name, losses, ratios, mean(run["cpu_s"] for run in runs))


def main() -> int:
    import torch
    from pages import machine, replace_section

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--markdown", type=Path, help="page whose table is replaced")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker[0], args.steps, int(args.worker[1]))
        return 0
    results: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for seed in range(args.seeds):
        for name, runs in results.items():
            runs.append(run_alone(name, args.steps, seed))
            print(f"seed {seed}  {name:28}{runs[-1]['loss']:8.4f}{runs[-1]['cpu_s']:6.0f} s", flush=True)
    table = list(rows(results))
    about = f"{args.steps} steps, {args.seeds} seeds; {machine()}, torch {torch.__version__}, 1 thread"
    print()
    for cells in [HEAD, *(row.cells for row in table)]:
        print("{:28}{:>8}  {:28}{:20}{:>6}".format(*cells))
    print(about)
    if args.markdown:
        lines = ["| " + " | ".join(cells) + " |" for cells in [HEAD, ["---"] * 5, *(row.cells for row in table)]]
        replace_section(args.markdown, "emulated training", [*lines, "", f"{about}."])
    return int(not all(row.ok for row in table))


if __name__ == "__main__":
    sys.exit(main())
