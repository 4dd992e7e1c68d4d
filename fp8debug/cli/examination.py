"""Running a script for one step to see what a capture would record of it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8debug.cli.runner import load, run
from fp8debug.cli.targets import Target
from fp8debug.config import CaptureOptions
from fp8debug.errors import Fp8DebugError
from fp8debug.hooks.autoattach import AutoAttach, StopBeforeTraining
from fp8debug.hooks.budget import size_text
from fp8debug.hooks.checkup import GemmCheck, compare, watch_first_step
from fp8debug.hooks.say import on_stderr
from fp8debug.rundir import RunDir
from fp8debug.settings import load_options


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """One GEMM layer, and what was recorded of it in the first step."""

    name: str
    kind: str
    backend: str
    in_features: int
    out_features: int
    matched: bool
    tensors: list[str]
    precision_asked: str | None
    precision_ran: str | None


@dataclass(frozen=True, slots=True)
class Examination:
    """What a capture of the script would record."""

    script: str
    stepped: bool
    layers: list[LayerCheck]
    gemms: list[GemmCheck]
    notes: list[str]
    """Events of the capture, one sentence each."""


def examine(target: Target, arguments: Sequence[str], given: Mapping[str, object]) -> Examination:
    """Run `target` until its first optimizer step is done.

    Raises:
        Fp8DebugError: bad options, or a script in which no model with GEMM layers ran.
        BaseException: whatever the script raises.
    """
    with tempfile.TemporaryDirectory(prefix="fp8debug-doctor-") as folder:
        path = Path(folder) / "run"
        options = load_options({**given, "out": str(path), "quiet": True, "every": 1, "recipes": ["current"]})
        hooks = AutoAttach(_plain(options), command=["fp8debug", "doctor"], script=target.title, say=on_stderr)
        hooks.start()
        try:
            # The script's own output is talk here: what doctor finds is the data.
            with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Using `torch.compile")  # of our hooks on all modules
                watched = watch_first_step(hooks, lambda: run(load(target, arguments)))
        except StopBeforeTraining as stop:
            raise Fp8DebugError(stop.message or "the script stopped before a model ran") from stop
        finally:
            summary = hooks.close()
        if summary is None:
            raise Fp8DebugError(
                f"no model with GEMM layers ran in {target.title}; expected a script that trains in this process"
            )
        layers, notes = _read(path)
        recorded = {layer.name for layer in layers if layer.tensors}
        gemms = compare(watched, hooks, recorded)
        if options.max_bytes is not None:
            notes.append(_budget_note(path, options.max_bytes, load_options(given).every))
        return Examination(target.title, watched.stepped, layers, gemms, [*dict.fromkeys([*summary.problems, *notes])])


def _plain(options: CaptureOptions) -> CaptureOptions:
    from dataclasses import replace

    quick = replace(options, attention=True, detail=(), raw_every=0, trigger=(), max_bytes=None, on_full="block")
    return replace(quick, emulate=None, plan=None, resume=None, force=False)


def _budget_note(path: Path, max_bytes: int, every: int) -> str:
    """How far a budget reaches, going by one step that was sampled without details."""
    taken = sum(part.stat().st_size for part in path.rglob("*.parquet") if "events" not in part.parts)
    n_steps = max_bytes // 2 // max(taken, 1) * every
    return (
        f"--max-bytes {size_text(max_bytes)}: a sampled step of one rank took {size_text(taken)} here, details apart; "
        f"sampled every {every} steps, half of it is used after about {n_steps:,} steps of one rank, and fewer are "
        "sampled from then on"
    )


def _read(path: Path) -> tuple[list[LayerCheck], list[str]]:
    from fp8debug.analysis.run import open_run

    with open_run(path) as opened:
        rows = opened.sql(
            "select layer, list(distinct tensor order by tensor), max(precision_asked), max(gemm_dtype) "
            "from tensors where pass <> 'eval' group by layer"
        ).fetchall()
        said = "select distinct message from events where kind <> 'never_fired' order by 1"
        notes = [text for (text,) in opened.sql(said).fetchall()]
    seen = {layer: (tensors, asked, ran) for layer, tensors, asked, ran in rows}
    checks = []
    for layer in RunDir(path).read_manifest().layers:
        if layer.kind == "attention":
            continue
        tensors, asked, ran = seen.get(layer.name, ([], None, None))
        sizes = layer.in_features, layer.out_features
        checks.append(LayerCheck(layer.name, layer.kind, layer.backend, *sizes, layer.matched, tensors, asked, ran))
    return checks, notes
