"""What the rules say of trainings that are healthy: the false alarms, counted.

    python benchmarks/false_alarms.py [--markdown docs/diagnosis.md]

Four small GPTs (GELU, ReLU, ReLU^2 from zero-initialised projections, SwiGLU) are trained in BF16 and judged under
every recipe, with channels, blocks and GEMMs recorded; then the fine-tuning of SmolLM2 that is in the repository. An
operand is one tensor of one layer; it is flagged when a finding above `watch` names it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

import fp8debug
from fp8debug.analysis.diagnosis import diagnose

ROOT = Path(__file__).resolve().parent.parent
ACTIVATIONS = ("gelu", "relu", "relu2", "swiglu")
RECIPES = ("current", "delayed:amax_history_len=16", "delayed")
BLOCK_RECIPES = ("block", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True)
class Training:
    """How long, how large, and how often it is sampled."""

    steps: int = 120
    microbatches: int = 2
    layers: int = 6
    every: int = 2

    @property
    def text(self) -> str:
        batches = "1 micro-batch" if self.microbatches == 1 else f"{self.microbatches} micro-batches"
        return f"{self.layers} blocks, {self.steps} steps of {batches}, every {self.every}th sampled"


@dataclass(frozen=True, slots=True)
class Alarms:
    """What was said of one healthy run."""

    n_operands: int
    n_flagged: dict[str, int]
    """Recipe -> operands that a finding above `watch` names."""
    n_by_severity: dict[str, int]


def record(
    train_gpt: ModuleType,
    activation: str,
    run_dir: Path,
    training: Training,
    *,
    recipes: tuple[str, ...] = RECIPES,
    detail: tuple[str, ...] = (),
) -> float:
    """Train a healthy GPT of width 64 under capture; returns the last step's loss."""
    model = train_gpt.build_model(activation, zero_init=activation == "relu2", d=64, seq=64, layers=training.layers)
    optimizer = torch.optim.AdamW(model.parameters())
    data = train_gpt.batches(train_gpt.load_text(2_000_000), 8, 64, seed=0)
    with fp8debug.attach(model, every=training.every, detail=detail, run_dir=run_dir, recipes=recipes, quiet=True):
        for step in range(training.steps):
            for group in optimizer.param_groups:
                group["lr"] = train_gpt.lr_at(step, training.steps, 1e-3)
            for _ in range(training.microbatches):
                loss = train_gpt.loss_of(model, *next(data)) / training.microbatches
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return float(loss.detach()) * training.microbatches


def alarms(run_dir: Path) -> Alarms:
    """What the shipped rules say of a run."""
    with fp8debug.open_run(run_dir) as run:
        findings = diagnose(run)
        (n_operands,) = run.sql("select count(distinct (layer, tensor)) from tensors").fetchall()[0]
        recipes = [recipe for (recipe,) in run.sql("select distinct recipe from errors").fetchall()]
    severe = [place for f in findings if f.severity in ("error", "warning") for place in f.places]
    return Alarms(
        n_operands,
        {
            recipe: len({(place.layer, place.tensor) for place in severe if place.recipe in (recipe, None)})
            for recipe in sorted(recipes)
        },
        {severity: sum(f.severity == severity for f in findings) for severity in ("error", "warning", "watch", "note")},
    )


def _table(found: dict[str, Alarms]) -> list[str]:
    lines = [
        "| training | operands | flagged, by recipe | errors | warnings | watch | notes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, alarm in found.items():
        flagged = ", ".join(f"{n} under `{recipe}`" for recipe, n in alarm.n_flagged.items())
        counts = " | ".join(str(n) for n in alarm.n_by_severity.values())
        lines.append(f"| {name} | {alarm.n_operands} | {flagged} | {counts} |")
    return lines


def _train_gpt() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt", ROOT / "examples" / "train_gpt.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    from pages import machine, replace_section  # beside this file, which tests load from elsewhere

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, help="page whose table is replaced")
    page = parser.parse_args().markdown
    train_gpt, found = _train_gpt(), {}
    with tempfile.TemporaryDirectory() as folder:
        for training in (Training(every=4), Training(steps=100, microbatches=1, layers=4, every=4)):
            for activation in ACTIVATIONS:
                path = Path(folder) / f"{activation}-{training.layers}"
                record(
                    train_gpt, activation, path, training,
                    recipes=RECIPES + BLOCK_RECIPES, detail=("channels", "blocks", "gemms"),
                )  # fmt: skip
                found[f"GPT, {activation}: {training.text}"] = alarms(path)
                print(*_table(found)[-1:], file=sys.stderr)
    found["SmolLM2-135M, fine-tuned (sample_dumps/smollm2)"] = alarms(ROOT / "sample_dumps" / "smollm2")
    found["GPT, gelu (sample_dumps/gpt-healthy)"] = alarms(ROOT / "sample_dumps" / "gpt-healthy")
    lines = [
        *_table(found),
        "",
        f"Measured on {machine()}, torch {torch.__version__}, by `benchmarks/false_alarms.py`.",
    ]
    print("\n".join(lines))
    if page is not None:
        replace_section(page, "false alarms", lines)


if __name__ == "__main__":
    main()
