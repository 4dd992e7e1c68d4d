"""The trainings of `fp8debug verify`, one after another, each a process of its own under `fp8debug attach`."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fp8debug.cli.child import Ended, RunChild, run_child, show_on_stderr
from fp8debug.cli.rule_choice import RuleChoice, rule_choice
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.plans import Plan
from fp8debug.rundir import RUNS_FOLDER, RunDir
from fp8debug.storage import is_url

if TYPE_CHECKING:
    from fp8debug.analysis.verification import TrainedRun, Verification

INTERRUPTED = 130
SEED = "{seed}"
TITLES = {"bf16": "the BF16 baseline", "recipe": "the run with the recipe", "plan": "the run with the plan"}
_OURS = ("emulate", "plan", "keep_bf16", "emulate_only", "resume")
"""Options of attach that a verification decides, or that make no sense in it."""
_NOT_PASSED_ON = ("OUT", "RUN_DIR", "NAME", "FORCE", "QUIET", "STEPS", "SEED", "DETAIL")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be verified."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    plan: Plan
    plan_file: str
    recipe: str | None
    """None: the plan's own."""
    seed: int
    n_seeds: int
    every: int
    min_recovery: float
    quiet: bool
    rules: RuleChoice = field(default_factory=lambda: rule_choice())


@dataclass(frozen=True, slots=True)
class _Training:
    kind: str
    seed: int

    @property
    def folder(self) -> str:
        return f"bf16-seed-{self.seed}" if self.kind == "seed" else self.kind

    @property
    def title(self) -> str:
        return TITLES.get(self.kind, f"BF16 with seed {self.seed}")


class Trainings:
    """All runs of one verification."""

    def __init__(self, request: Request, out: str | None, *, force: bool = False, child: RunChild = run_child) -> None:
        """Find the folder.

        Raises:
            UsageError: something is there already.
        """
        self._request = request
        self._child = child
        self.folder = _free_folder(request, out, force=force)

    def run(self) -> Verification:
        """Train, then compare.

        Raises:
            Fp8DebugError: a run that does not get far enough to be compared.
            KeyboardInterrupt: it has been passed on to the run.
        """
        request = self._request
        planned = [_Training(kind, request.seed) for kind in ("bf16", "recipe", "plan")]
        planned[1:1] = [_Training("seed", request.seed + extra) for extra in range(1, request.n_seeds)]
        trained = []
        for number, training in enumerate(planned, 1):
            self._say(f"fp8debug: {number} of {len(planned)}: {training.title}, seed {training.seed}")
            trained.append(self._train(training))
        self._say(f"fp8debug: comparing {len(planned)} runs")
        from fp8debug.analysis.verification import verify_runs

        return verify_runs(
            trained,
            request.plan,
            recipe=request.recipe,
            plan_file=request.plan_file,
            min_recovery=request.min_recovery,
            rules=request.rules.rules(),
            thresholds=request.rules.thresholds,
        )

    def _train(self, training: _Training) -> TrainedRun:
        from fp8debug.analysis.verification import TrainedRun

        path = self.folder / training.folder
        began = time.perf_counter()
        ended = self._child(self._command(training, path), _variables(training.seed), self._shown(training))
        may_fail = training.kind in ("recipe", "plan")
        problem = _problem(path) if may_fail or not ended.code else None
        if problem is not None or (ended.code and not may_fail):
            raise _failure(training.title, ended, problem)
        return TrainedRun(training.kind, path, training.seed, ended.code, time.perf_counter() - began)

    def _command(self, training: _Training, path: Path) -> list[str]:
        request = self._request
        recipe = request.recipe or request.plan.recipe
        options = ["--every", str(request.every), "--detail", "none", "--recipe", recipe, "--seed", str(training.seed)]
        if training.kind in ("recipe", "plan"):
            options += ["--emulate", recipe]
        if training.kind == "plan":
            options += ["--plan", request.plan_file]
        words = [word.replace(SEED, str(training.seed)) for word in request.arguments]
        target = ["-m", request.script] if request.is_module else [request.script]
        return [sys.executable, "-m", "fp8debug", "attach", *options, "--out", str(path), *target, *words]

    def _shown(self, training: _Training) -> Callable[[str], None]:
        return lambda line: self._say(f"{training.folder} | {line}")

    def _say(self, line: str) -> None:
        if not self._request.quiet:
            show_on_stderr(line)


def check_script(script: str, *, module: bool) -> None:
    """Refuse what attach would refuse.

    Raises:
        UsageError: no such script, or no Python.
        NotRunnable: no such module.
    """
    from fp8debug.cli import launcher
    from fp8debug.cli.targets import find_target

    if launcher.is_launcher_module(script) if module else launcher.is_launcher(script):
        return
    if not module and (problem := launcher.why_no_script(script)) is not None:
        raise problem
    find_target(script, module=module)


def check_settings() -> None:
    """Refuse a configuration that would make the runs differ otherwise, or rules that cannot be read.

    Raises:
        UsageError: it decides what is emulated; a rule file that is none.
    """
    from fp8debug.settings import SETTINGS, load_options

    options = load_options({})
    for name in _OURS:
        if getattr(options, name):
            raise UsageError(
                f"the configuration file or the environment sets {SETTINGS[name].key}, which verify decides itself; "
                "expected a configuration without it"
            )
    rule_choice().rules()


def parse_share(text: str) -> float:
    """A share as `80%` or `0.8`.

    Raises:
        UsageError: anything else, or not between 0 and 1.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"--min-recovery: got {text!r}; expected a share such as 80% or 0.8")
    return share


def _free_folder(request: Request, out: str | None, *, force: bool) -> Path:
    title = request.script.rpartition(".")[2] if request.is_module else Path(request.script).stem
    default = Path(RUNS_FOLDER) / f"verify-{title}-{datetime.now():%Y%m%d-%H%M%S}"
    if out is not None and is_url(out):
        raise UsageError(f"--out {out} is no folder; expected one of this machine: verify runs its trainings there")
    path = default if out is None else Path(out)
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path} is a file; expected a folder to create or an empty one")
    if path.is_dir() and any(path.iterdir()):
        if not force:
            raise UsageError(f"--out {path} is not empty; give another --out, or --force to rename the old one")
        places = (path.with_name(f"{path.name}.old{number or ''}") for number in range(1000))
        path.rename(next(place for place in places if not place.exists()))
    return path


def _variables(seed: int) -> dict[str, str]:
    """Beside our own environment: no settings of a single run, unbuffered lines, hashes that a seed decides."""
    from fp8debug.settings import PREFIX

    unset = {f"{PREFIX}{name}": "" for name in _NOT_PASSED_ON if f"{PREFIX}{name}" in os.environ}
    return {**unset, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": str(seed % 2**32)}


def _problem(path: Path) -> str | None:
    """Why a run cannot be compared; None when it can."""
    run = RunDir(path)
    if not run.part_names("steps"):
        return "recorded no step of a training"
    manifest = run.read_manifest()
    return f"was recorded in part only ({manifest.status_reason})" if manifest.status == "disabled" else None


def _failure(title: str, ended: Ended, problem: str | None) -> Fp8DebugError:
    how = f"was killed by signal {-ended.code}" if ended.code < 0 else f"ended with exit code {ended.code}"
    what = " and ".join([*([how] if ended.code else []), *([problem] if problem else [])])
    lines = "".join(f"\n  {line}" for line in ended.last_lines)
    return Fp8DebugError(f"{title} {what}; nothing was run after it. Its last lines:{lines or ' none'}")
