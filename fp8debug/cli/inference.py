"""The inference check of `fp8debug verify --inference`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fp8debug.errors import Fp8DebugError, UsageError

if TYPE_CHECKING:
    from torch import nn

    from fp8debug.hooks.inference.batch import Batch

_RECIPE = "current"
"""What engines that serve FP8 compute with when nothing is said."""


def inference_check(
    source: str,
    batch: str | None,
    recipe: str | None,
    *,
    plan: str | None,
    as_json: bool,
    arguments: Sequence[str] = (),
) -> int:
    """Compare a model's outputs in high precision with those in emulated FP8, and print where they part.

    Args:
        source: a script, or a model: `file.py:function` or a directory of Hugging Face.
        batch: file of the batch; None: a script's first batch.
        recipe: as `--recipe` is given; None: the plan's, or current scaling where there is none.
        plan: a fallback plan's file.
        as_json: print one JSON object.
        arguments: of the script.

    Returns:
        The exit code.

    Raises:
        Fp8DebugError: there is no such model, script, batch, recipe or plan.
    """
    from fp8debug.cli.render.inference import inference_json, inference_text
    from fp8debug.cli.render.stream import looks_of, write_stdout
    from fp8debug.hooks.inference.batch_file import read_batch
    from fp8debug.hooks.inference.check import check_inference
    from fp8debug.plans import read_plan

    given = None if batch is None else read_batch(Path(batch))
    fallback = None if plan is None else read_plan(Path(plan))
    model, used, notes = _subject(source, given, arguments)
    emulated = recipe or (_RECIPE if fallback is None else None)
    found = check_inference(model, used, emulated, plan=fallback, title=os.path.basename(source.rstrip("/")))
    if as_json:
        sys.stdout.write(inference_json(found, notes))
    else:
        write_stdout(inference_text(found, looks_of(sys.stdout), notes))
    return 0


def _subject(source: str, batch: Batch | None, arguments: Sequence[str]) -> tuple[nn.Module, Batch, list[str]]:
    """The model, the batch, and what is to be said of them."""
    from fp8debug.hooks.model_source import is_model_source, load_model

    if is_model_source(source) or ":" in source:
        if arguments:
            raise UsageError(
                f"--inference: {source} is a model, which takes no words of its own, and got {' '.join(arguments)}; "
                "options stand all before the model or all directly after it"
            )
        if batch is None:
            raise UsageError(f"--inference: {source} comes without a batch; expected --batch FILE")
        return load_model(source), batch, []
    return _of_script(source, batch, arguments)


def _of_script(source: str, batch: Batch | None, arguments: Sequence[str]) -> tuple[nn.Module, Batch, list[str]]:
    from fp8debug.cli.runner import load, run
    from fp8debug.cli.targets import find_target
    from fp8debug.hooks.inference.batch import call_batch
    from fp8debug.hooks.inference.script import first_training_forward

    target = find_target(source, module=False)
    # The script's own output is talk here: what is found is the data.
    with contextlib.redirect_stdout(sys.stderr):
        reached = first_training_forward(lambda: run(load(target, arguments)))
    if reached is None:
        raise Fp8DebugError(
            f"no model with GEMM layers was called to be trained in {target.title}; expected a script that trains in "
            "this process, or a model as file.py:function"
        )
    notes = []
    if reached.n_layers_elsewhere:
        notes.append(
            f"the script calls parts of its model one after another: {reached.n_layers_elsewhere} of its layers are "
            f"outside of the {type(reached.model).__name__} that it called first, and were not checked"
        )
    return reached.model, batch or call_batch(reached.args, reached.kwargs), notes
