"""What capture costs a training step, as a ratio to the bare step.

    python benchmarks/overhead.py [--steps 20] [--json FILE] [--markdown PAGE]
    python benchmarks/overhead.py --check          # two minutes: what has a limit; exits with 1 where one is missed
    python benchmarks/overhead.py --backends       # the same table for the other ways of reaching operands

One process a variant, all alive; the controller hands out one step at a time, round-robin in a shuffled order, so that
the i-th step of every variant runs next to the i-th bare step. CPU ratio: CPU seconds of the process in the step and
in the pause after it (background writing is charged) over the same of `bare`; the median over steps is reported.
`bare again` is a second untouched process: the noise floor.

*histograms every step* samples each step without details: health, scales, histograms and error sums of `current` and
`delayed`. *four recipes* has the sums of four recipes with one scale a tensor: `current`, `current` with powers of two,
`delayed` with a history of 1024 and of 16; *two per tensor, two of blocks* those of `current` and `delayed`, and
`mxfp8` and `nvfp4`, whose blocks are measured in the hook, where the tensor is. *everything every step* adds channels
and GEMM results, and with `five recipes` (`mxfp8`, `block` and `nvfp4` beside the two) blocks as well; the column
`every 50` says what that comes to when each 50th step is sampled, the others costing what *not sampled* does. *default
settings* is computed so, since a run as short as this one sees none of its samples: a 50th of *everything every step*,
and else *not sampled*. *attached but idle* has hooks that find nothing to do.

`--check` runs those that have a limit, and the yardsticks.

With `--backends` each variant is compared with a bare run of the same model: plain, compiled by inductor, or converted
to torchao's emulated float8. *not sampled* takes the amax of every tensor; with *mode off* a dispatch backend is there
that has nothing to look for, so that its mode is never entered.

`setup` below makes the file a variant for any harness that calls `setup(model, optimizer, folder)`; which variant is
said by FP8DEBUG_BENCH (default `four recipes every step`).

`aminmax alone` is the floor of anything that looks at every element: hooks that call torch.aminmax on the same tensors
and keep nothing. `torch.save in hooks` is what one writes oneself in a hurry.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

HISTOGRAMS = "histograms every step, numba"
FOUR = "four recipes every step"
FOUR_RECIPES = ("current", "current:power_of_two=true", "delayed", "delayed:amax_history_len=16")
MIXED_RECIPES = ("current", "delayed", "mxfp8", "nvfp4")
FIVE_RECIPES = ("current", "delayed", "mxfp8", "block", "nvfp4")
IDLE, DEFAULT, EVERYTHING = "attached but idle", "default settings", "everything every step"
VARIANTS: dict[str, dict[str, Any]] = {
    IDLE: {},
    FOUR: {"every": 1, "engine": "numba", "detail": (), "recipes": FOUR_RECIPES},
    HISTOGRAMS: {"every": 1, "engine": "numba", "detail": ()},
    "histograms every step, torch": {"every": 1, "engine": "torch", "detail": ()},
    "two per tensor, two of blocks, every step": {
        "every": 1,
        "engine": "numba",
        "detail": ("blocks",),
        "recipes": MIXED_RECIPES,
    },
    EVERYTHING: {"every": 1, "engine": "numba"},
    "everything every step, five recipes": {"every": 1, "engine": "numba", "recipes": FIVE_RECIPES},
    "not sampled, numba": {"every": 1_000_000, "engine": "numba"},
    "not sampled, torch": {"every": 1_000_000, "engine": "torch"},
    DEFAULT: {},
}
BACKENDS: dict[str, dict[str, Any]] = {
    "dispatch, histograms every step": {"every": 1, "backend": "dispatch", "detail": ()},
    "dispatch, not sampled": {"every": 1_000_000, "backend": "dispatch"},
    "dispatch, mode off": {"every": 1_000_000, "backend": "dispatch"},
    "modules, histograms every step": {"every": 1, "backend": "modules", "detail": ()},
    "modules, not sampled": {"every": 1_000_000, "backend": "modules"},
    "compiled, histograms every step": {"every": 1, "detail": ()},
    "compiled, not sampled": {"every": 1_000_000},
    "float8, histograms every step": {"every": 1, "detail": ()},
    "float8, not sampled": {"every": 1_000_000},
}
MODE_OFF = "dispatch, mode off"
FLAVOURS = ("compiled", "float8")
FLOOR, NAIVE = "aminmax alone", "torch.save in hooks"
YARDSTICKS = ("bare again", FLOOR, NAIVE)
NOT_SAMPLED = "not sampled, numba"
CHECKED = (IDLE, FOUR, NOT_SAMPLED, EVERYTHING)
LIMITS = {
    FOUR: 1.08,
    IDLE: 1.0,
    DEFAULT: 1.03,
    HISTOGRAMS: 1.08,
    "histograms every step, torch": 1.6,
    "not sampled, torch": 1.10,
    "dispatch, histograms every step": 1.25,
    "dispatch, not sampled": 1.06,
    MODE_OFF: 1.01,
}
WARM_UP, SETTLE_S, THREADS = 3, 0.2, 2
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that spin while they wait would be charged as CPU time of whatever they wait for."""


def bare_of(name: str) -> str:
    """What a variant is compared with."""
    flavour = name.partition(",")[0]
    return f"{flavour}, bare" if flavour in FLAVOURS else "bare"


def flavoured(model: Any, name: str) -> Any:
    """The model as the variant's flavour has it."""
    import torch

    flavour = name.partition(",")[0]
    if flavour == "compiled":
        return torch.compile(model)
    if flavour == "float8":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        return convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
    return model


class Variant:
    """An attached session, for harnesses that know nothing of it."""

    def __init__(self, model: Any, folder: str, options: dict[str, Any]) -> None:
        import fp8debug

        self._session = fp8debug.attach(model, run_dir=os.path.join(folder, "run"), quiet=True, **options)

    def look_for_nothing(self) -> None:
        """Take no layer from now on, as `fp8debug control` could ask for."""
        observation = self._session._observation
        plan = observation.plan
        selection = replace(plan.selection, exclude=(re.compile(""),))
        observation.plan = replace(plan, selection=selection)

    def pause(self) -> None:
        """Leave the hooks with nothing to do."""
        self._session._observation.active = False

    def close(self) -> None:
        """End the capture."""
        self._session.close()


def setup(model: Any, optimizer: Any, folder: str) -> Variant:
    """Attach to `model` as the variant named by FP8DEBUG_BENCH."""
    return Variant(model, folder, VARIANTS[os.environ.get("FP8DEBUG_BENCH", FOUR)])


def hook_floor(model: Any) -> None:
    """Call torch.aminmax on `x`, `w` and `dy` of every Linear."""
    import torch

    def look(module: Any, args: Any, output: Any) -> None:
        torch.aminmax(args[0].detach())
        torch.aminmax(module.weight.detach())
        output.register_hook(lambda gradient: torch.aminmax(gradient) and None)

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(look)


def hook_saving(model: Any, folder: str) -> None:
    """Save `x`, `w` and `dy` of every Linear in the hook; each step overwrites the last one's files."""
    import torch

    def save(tensor: Any, name: str) -> None:
        torch.save(tensor.detach().clone(), os.path.join(folder, name))

    def hook_of(name: str) -> Any:
        def look(module: Any, args: Any, output: Any) -> None:
            save(args[0], f"{name}.x")
            save(module.weight, f"{name}.w")
            output.register_hook(lambda gradient: save(gradient, f"{name}.dy"))

        return look

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(hook_of(name))


class Watcher(Protocol):
    """What a tool does around the steps of a training."""

    def begin_step(self, number: int) -> None:
        """Before the forward."""

    def end_step(self, loss: Any) -> None:
        """After the optimizer."""

    def close(self) -> None:
        """After the last step."""


def worker(name: str, folder: str) -> None:
    """Be the process of one variant."""
    import torch
    from gpt import GPT

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = flavoured(GPT(), name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    options = (VARIANTS | BACKENDS).get(name)
    variant = None if options is None else Variant(model, folder, options)
    if name == MODE_OFF and variant is not None:
        variant.look_for_nothing()
    if name == IDLE and variant is not None:
        variant.pause()
    if name == FLOOR:
        hook_floor(model)
    if name == NAIVE:
        hook_saving(model, folder)
    train_in_step(model, optimizer)
    if variant is not None:
        variant.close()


def train_in_step(model: Any, optimizer: Any, watcher: Watcher | None = None, out: TextIO = sys.stdout) -> None:
    """Train in step with the controller: a line in, a step done, its CPU seconds and loss on `out`."""
    import torch
    import torch.nn.functional as F
    from gpt import BATCH, SEQUENCE, VOCABULARY

    generator = torch.Generator().manual_seed(1)
    print("ready", flush=True, file=out)
    for number, _ in enumerate(sys.stdin):
        ids = torch.randint(0, VOCABULARY, (2, BATCH, SEQUENCE), generator=generator)
        begin, wall = cpu_seconds(), time.perf_counter()
        if watcher is not None:
            watcher.begin_step(number)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(ids[0]).flatten(0, 1).float(), ids[1].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if watcher is not None:
            watcher.end_step(loss)
        wall = time.perf_counter() - wall
        time.sleep(SETTLE_S)
        print(json.dumps({"cpu": cpu_seconds() - begin, "wall": wall, "loss": loss.item()}), flush=True, file=out)


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has started."""
    import psutil

    def spent(process: Any) -> float:
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            return 0.0
        return float(times.user + times.system)

    return time.process_time() + sum(map(spent, psutil.Process().children(recursive=True)))


def measure(
    names: list[str], steps: int, folder: Path, script: str = __file__, pythons: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, float]]]:
    """Run all variants side by side, each by its interpreter; returns one record a measured step."""
    workers = {}
    for name in names:
        place = folder / name.replace(" ", "_").replace(",", "")
        place.mkdir()
        command = [(pythons or {}).get(name, sys.executable), script, "--worker", name, str(place)]
        workers[name] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT
        )
        workers[name].stdout.readline()  # type: ignore[union-attr]
    records: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    order = random.Random(0)
    for step in range(WARM_UP + steps):
        for name in order.sample(names, len(names)):
            process = workers[name]
            process.stdin.write("step\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            record = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            if step >= WARM_UP:
                records[name].append(record)
    for process in workers.values():
        process.stdin.close()  # type: ignore[union-attr]
        process.wait()
    return records


def ratios(records: list[dict[str, float]], bare: list[dict[str, float]], key: str) -> list[float]:
    """Step by step ratio to the bare run."""
    return [r[key] / b[key] for r, b in zip(records, bare, strict=True)]


def megabytes_per_step(folder: Path, name: str, steps: int) -> float:
    """Bytes the run left on disk, per step, in MB."""
    place = folder / name.replace(" ", "_").replace(",", "")
    written = sum(f.stat().st_size for f in place.rglob("*") if f.is_file())
    return written / (1 if name == NAIVE else WARM_UP + steps) / 1e6


class Row(NamedTuple):  # a dataclass would look for this module, which harnesses do not enter anywhere
    """What one variant cost."""

    name: str
    cpu_ratio: float
    q1: float
    q3: float
    wall_ratio: float
    mb_per_step: float
    limit: float | None
    same_loss: bool
    every_50: float | None = None
    """What the ratio would be if one step in 50 were like this and the others not sampled."""

    @property
    def missed(self) -> bool:
        """Whether it cost more than it may, or changed the training; idle hooks cost nothing within the noise."""
        cost = self.q1 if self.name == IDLE else self.cpu_ratio
        return not self.same_loss or (self.limit is not None and cost > self.limit)


def summarise(name: str, records: list[dict[str, float]], bare: list[dict[str, float]], mb_per_step: float) -> Row:
    """Medians of the paired ratios."""
    q1, median, q3 = statistics.quantiles(ratios(records, bare, "cpu"), n=4)
    wall = statistics.median(ratios(records, bare, "wall"))
    same = [r["loss"] for r in records] == [r["loss"] for r in bare]
    return Row(name, median, q1, q3, wall, mb_per_step, LIMITS.get(name), same)


def default_settings(
    records: dict[str, list[dict[str, float]]], bare: list[dict[str, float]], sizes: dict[str, float]
) -> list[Row]:
    """The row of what default settings come to; none where a part of it was not measured."""
    if not {EVERYTHING, NOT_SAMPLED} <= records.keys():
        return []

    def mixed(key: str) -> list[float]:
        pairs = zip(ratios(records[EVERYTHING], bare, key), ratios(records[NOT_SAMPLED], bare, key), strict=True)
        return [other + (sampled - other) / 50 for sampled, other in pairs]

    q1, median, q3 = statistics.quantiles(mixed("cpu"), n=4)
    mb_per_step = sizes[NOT_SAMPLED] + (sizes[EVERYTHING] - sizes[NOT_SAMPLED]) / 50
    return [Row(DEFAULT, median, q1, q3, statistics.median(mixed("wall")), mb_per_step, LIMITS[DEFAULT], True)]


def with_every_50(rows: list[Row]) -> list[Row]:
    """Fill `every_50` of what samples every step, where `not sampled` was measured too."""
    other = {row.name: row.cpu_ratio for row in rows}.get(NOT_SAMPLED)
    if other is None:
        return rows
    sampled = {name for name, options in VARIANTS.items() if options.get("every") == 1}
    return [r._replace(every_50=other + (r.cpu_ratio - other) / 50 if r.name in sampled else None) for r in rows]


def heading(bare: list[dict[str, float]]) -> str:
    """Machine, versions and what the ratios refer to."""
    import torch
    from pages import machine

    cpu_ms = statistics.median(r["cpu"] for r in bare) * 1e3
    versions = f"{machine()}, torch {torch.__version__}, {THREADS} threads"
    return f"{versions}; {len(bare)} steps, bare step {cpu_ms:.0f} ms CPU; {date.today()}"


def print_table(rows: list[Row]) -> None:
    """The table for a terminal."""
    names = f"{'variant':35} {'cpu ratio':>9} {'q1-q3':>11} {'every 50':>8}"
    print(f"{names} {'wall ratio':>10} {'MB/step':>8} {'limit':>6}  same loss")
    for r in rows:
        quartiles = f"{r.q1:5.2f}-{r.q3:<5.2f}"
        sparse = "" if r.every_50 is None else f"{r.every_50:.3f}"
        print(
            f"{r.name:35} {r.cpu_ratio:9.3f} {quartiles} {sparse:>8} {r.wall_ratio:10.3f} {r.mb_per_step:8.3f} "
            f"{r.limit or '':>6}  {r.same_loss}"
        )


def write_markdown(page: Path, section: str, about: str, rows: list[Row]) -> None:
    """Replace what stands between the two `section` comments of a page."""
    from pages import replace_section

    lines = ["| variant | CPU ratio | quartiles | every 50 | MB a step |", "| --- | --- | --- | --- | --- |"]
    for r in rows:
        sparse = "" if r.every_50 is None else f"{r.every_50:.2f}"
        lines.append(f"| {r.name} | {r.cpu_ratio:.2f} | {r.q1:.2f} to {r.q3:.2f} | {sparse} | {r.mb_per_step:.2f} |")
    replace_section(page, section, [*lines, "", f"{about}."])


def main() -> int:
    """Measure, print the table, fail where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="default: 20, with --check 12")
    parser.add_argument("--backends", action="store_true", help="the table of the other backends")
    parser.add_argument("--check", action="store_true", help="only what has a limit")
    parser.add_argument("--only", help="a variant by name; repeatable", action="append")
    parser.add_argument("--json", type=Path, help="write the table there too")
    parser.add_argument("--markdown", type=Path, help="page whose table is replaced")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker)
        return 0
    measured = [name for name in VARIANTS if name != DEFAULT]
    wanted = args.only or (CHECKED if args.check else BACKENDS if args.backends else measured)
    yardsticks = YARDSTICKS[:1] if args.backends else YARDSTICKS[:2] if args.check else YARDSTICKS
    names = list(dict.fromkeys(["bare", *yardsticks, *map(bare_of, wanted), *wanted]))
    with tempfile.TemporaryDirectory() as folder:
        steps = args.steps or (12 if args.check else 20)
        records = measure(names, steps, Path(folder))
        sizes = {name: megabytes_per_step(Path(folder), name, steps) for name in names}
    bare = records.pop("bare")
    bases = {"bare": bare} | {name: records.pop(name) for name in names if name.endswith(", bare")}
    rows = with_every_50([summarise(name, found, bases[bare_of(name)], sizes[name]) for name, found in records.items()])
    rows += default_settings(records, bare, sizes)
    print(heading(bare))
    print_table(rows)
    if args.json:
        args.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    if args.markdown:
        own = "capture" if "<!-- capture -->" in args.markdown.read_text(encoding="utf-8") else "overhead"
        write_markdown(args.markdown, "backends" if args.backends else own, heading(bare), rows)
    return int(any(row.missed for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
