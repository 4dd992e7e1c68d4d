"""What other tools cost beside this one: the training and the pairing of overhead.py, every step looked at.

    python benchmarks/peers.py [--steps 20] [--peers-python PYTHON] [--markdown docs/performance.md]

PYTHON is an interpreter that has the peers (mindstudio-probe, torch-module-monitor, transformers, wandb), the torch of
ours, and psutil; a peer that it lacks is left out and named. Nothing of theirs is copied: each is set up as its own
documentation says, with as little as it can record of the Linear layers.

*an inspector's arithmetic* is what FP8 inspectors do to `x`, `w` and `dy` of each Linear, in plain torch: zeros are
dropped, the rest is quantized under current scaling, cosine, MSE, underflow and overflow, each fetched with `.item()`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overhead import (
    FLOOR,
    HISTOGRAMS,
    NAIVE,
    THREADS,
    Row,
    Variant,
    heading,
    hook_floor,
    hook_saving,
    measure,
    megabytes_per_step,
    summarise,
    train_in_step,
)
from overhead import VARIANTS as OURS


class Idle:
    """A tool with nothing to do around a step."""

    def begin_step(self, number: int) -> None:
        """Nothing."""

    def end_step(self, loss: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Ours(Idle):
    """fp8debug under the options of one variant of overhead.py."""

    def __init__(self, model: Any, folder: str, options: dict[str, Any]) -> None:
        self._variant = Variant(model, folder, options)

    def close(self) -> None:
        """End the capture."""
        self._variant.close()


class Msprobe(Idle):
    """Statistics of modules, dumped at each step."""

    def __init__(self, model: Any, folder: str, **statistics: Any) -> None:
        from msprobe.pytorch import PrecisionDebugger

        config = Path(folder, "config.json")
        task = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics", "tensor_list": []}
        content = {"task": "statistics", "dump_path": folder, "rank": [], "step": [], "level": "L0"}
        config.write_text(json.dumps({**content, "statistics": {**task, **statistics}}))
        self._debugger, self._model = PrecisionDebugger(config_path=str(config)), model

    def begin_step(self, number: int) -> None:
        """Hook the model."""
        self._debugger.start(model=self._model)

    def end_step(self, loss: Any) -> None:
        """Write."""
        self._debugger.stop()
        self._debugger.step()


class ModuleMonitor(Idle):
    """Mean and largest magnitude of the activations of Linear layers, norms of weights and gradients, as JSON lines."""

    def __init__(self, model: Any, folder: str) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook
        from torch_module_monitor import ModuleMonitor as Monitor

        layers = r".*(qkv|proj|fc1|fc2|head).*"
        self._monitor, self._path = Monitor(monitor_step_fn=lambda step: True), Path(folder, "log.jsonl")
        self._monitor.set_module(model)
        self._monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1), metric_regex=layers)
        self._monitor.add_activation_metric("amax", lambda x: x.abs().amax(dim=-1), metric_regex=layers)
        self._monitor.add_parameter_metric("norm", lambda w: w.norm(), metric_regex=layers)
        self._monitor.add_gradient_metric("norm", lambda w: w.norm())
        register_optimizer_step_pre_hook(self._before_optimizer)

    def begin_step(self, number: int) -> None:
        """Begin to watch."""
        self._monitor.begin_step(number)

    def end_step(self, loss: Any) -> None:
        """Write."""
        self._monitor.end_step()
        with self._path.open("a") as log:
            log.write(json.dumps({k: float(v) for k, v in self._monitor.get_step_metrics().items()}) + "\n")

    def _before_optimizer(self, *_: Any) -> None:
        self._monitor.monitor_parameters()
        self._monitor.monitor_gradients()


class Wandb(Idle):
    """Histograms of parameters and gradients, offline."""

    def __init__(self, model: Any, folder: str) -> None:
        os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_CONSOLE="off", WANDB_DISABLE_GIT="true")
        import wandb

        self._wandb = wandb
        settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True)
        self._run = wandb.init(project="bench", dir=folder, settings=settings)
        wandb.watch(model, log="all", log_freq=1)

    def end_step(self, loss: Any) -> None:
        """Log."""
        self._wandb.log({"loss": loss.item()})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def underflow_overflow(model: Any, folder: str) -> Idle:
    """Hugging Face's detector."""
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(model)
    return Idle()


def inspector(model: Any, folder: str) -> Idle:
    """See the head of this file."""
    import torch
    import torch.nn.functional as F

    log = open(Path(folder, "inspector.log"), "w", buffering=1)  # noqa: SIM115 as long as the training

    def tell(name: str, tensor: Any, dtype: torch.dtype) -> None:
        values = tensor.detach()
        values = values[values != 0].float()
        if not values.numel():
            return
        amin, amax = values.abs().aminmax()
        largest = torch.finfo(dtype).max
        scale = torch.div(torch.tensor(largest), amax)
        quantized = (values * scale).clamp(-largest, largest).to(dtype).float()
        numbers = (
            amin,
            amax,
            scale,
            F.cosine_similarity(values, quantized / scale, dim=0),
            F.mse_loss(values, quantized / scale),
            (quantized == 0).sum() / tensor.numel(),
            (quantized.abs() == largest).sum() / tensor.numel(),
        )
        log.write(f"{name} {' '.join(f'{number.item():.4g}' for number in numbers)}\n")

    def hook_of(name: str) -> Callable[..., None]:
        def look(module: Any, args: Any, output: Any) -> None:
            tell(f"{name}.x", args[0], torch.float8_e4m3fn)
            tell(f"{name}.w", module.weight, torch.float8_e4m3fn)
            output.register_hook(lambda gradient: tell(f"{name}.dy", gradient, torch.float8_e5m2))

        return look

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(hook_of(name))
    return Idle()


def yardstick(hook: Callable[..., None]) -> Callable[[Any, str], Idle]:
    """A tool of hooks alone."""

    def setup(model: Any, folder: str) -> Idle:
        hook(model, folder)
        return Idle()

    return setup


Setup = Callable[[Any, str], Idle]
DEFAULT = "default settings"
TOOLS: dict[str, Setup] = {
    "bare": lambda model, folder: Idle(),
    "bare again": lambda model, folder: Idle(),
    FLOOR: yardstick(lambda model, folder: hook_floor(model)),
    f"fp8debug, {HISTOGRAMS}": lambda model, folder: Ours(model, folder, OURS[HISTOGRAMS]),
    f"fp8debug, {DEFAULT}": lambda model, folder: Ours(model, folder, OURS[DEFAULT]),
    NAIVE: yardstick(hook_saving),
    "an inspector's arithmetic": inspector,
}
PEERS: dict[str, tuple[str, Setup]] = {
    "msprobe statistics, Linear alone": ("mindstudio-probe", lambda m, f: Msprobe(m, f, list=["Linear"])),
    "msprobe statistics, all modules": ("mindstudio-probe", Msprobe),
    "torch-module-monitor": ("torch-module-monitor", ModuleMonitor),
    "transformers' DebugUnderflowOverflow": ("transformers", underflow_overflow),
    'wandb.watch(log="all")': ("wandb", Wandb),
}
"""By name: the distribution it comes from, and how it is set up."""


def worker(name: str, folder: str) -> None:
    """Be the process of one tool; what it prints goes to its log."""
    import torch
    from gpt import GPT

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    talk, sys.stdout = sys.stdout, sys.stderr  # theirs may print
    watcher = (TOOLS | {peer: setup for peer, (_, setup) in PEERS.items()})[name](model, folder)
    train_in_step(model, optimizer, watcher, talk)
    watcher.close()


def versions(python: str) -> dict[str, str]:
    """Versions of the peers' distributions that the interpreter has."""
    names = sorted({distribution for distribution, _ in PEERS.values()})
    code = (
        "import importlib.metadata as m, json, sys\n"
        "have = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: have[n] for n in sys.argv[1:] if n in have}))"
    )
    answer = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def write_markdown(page: Path, rows: list[Row], about: str) -> None:
    """Replace the table of the page."""
    from pages import replace_section

    lines = ["| tool | CPU ratio | quartiles | wall ratio | MB a step | same losses |", "| --- |" + " --- |" * 5]
    for r in rows:
        figures = f"{r.cpu_ratio:.2f} | {r.q1:.2f} to {r.q3:.2f} | {r.wall_ratio:.2f} | {r.mb_per_step:.2f}"
        lines.append(f"| {r.name} | {figures} | {'yes' if r.same_loss else 'no'} |")
    replace_section(page, "peers", [*lines, "", f"{about}."])


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--markdown", type=Path, help="page whose table is replaced")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker)
        return
    have = versions(args.peers_python)
    there = [name for name, (distribution, _) in PEERS.items() if distribution in have]
    for name in PEERS.keys() - there:
        print(f"left out, not installed: {name}", file=sys.stderr)
    names = [*TOOLS, *there]
    with tempfile.TemporaryDirectory() as folder:
        pythons = dict.fromkeys(there, args.peers_python)
        records = measure(names, args.steps, Path(folder), __file__, pythons)
        sizes = {name: megabytes_per_step(Path(folder), name, args.steps) for name in names}
    bare = records.pop("bare")
    rows = sorted(
        (summarise(name, found, bare, sizes[name]) for name, found in records.items()), key=lambda row: row.cpu_ratio
    )
    ours = importlib.metadata.version("fp8debug")
    about = "; ".join([heading(bare), f"fp8debug {ours}", ", ".join(f"{n} {v}" for n, v in have.items())])
    print(about)
    for r in rows:
        print(f"{r.name:45} {r.cpu_ratio:6.3f} {r.q1:6.3f}-{r.q3:<6.3f} {r.wall_ratio:6.3f} {r.mb_per_step:8.3f}")
    if args.markdown:
        write_markdown(args.markdown, rows, about)


if __name__ == "__main__":
    main()
