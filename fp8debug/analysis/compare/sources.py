"""A curve from whatever is given: a run directory, a file made elsewhere, a curve."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from fp8debug.analysis.compare.curve import Curve, Floats
from fp8debug.analysis.compare.differences import FIRST_INPUT
from fp8debug.analysis.compare.files import read_file, read_manifest_file
from fp8debug.analysis.compare.setup import facts_of_run
from fp8debug.analysis.run import Run, open_run
from fp8debug.errors import Fp8DebugError
from fp8debug.storage import RunPath, is_url, run_path

Source = str | os.PathLike[str] | Curve

STEPS = """
select
    step, avg(loss) as loss, avg(grad_norm) as grad_norm, avg(lr) as lr, sum(tokens)::double as tokens,
    count(loss) as n_losses, coalesce(bool_or(skipped), false) as skipped
from steps
group by step
order by step
"""
_FIRST_INPUT = """
select layer || ' ' || dtype || ' ' || shape::varchar || ' step ' || step, checksum::varchar, amin, amax
from tensors
where tensor = 'x' and checksum is not null and step = (select min(step) from steps) and is_judged_pass(pass)
order by rank, seq
limit 1
"""
_SCORES = "select task, arg_max(score, (segment, step, unix_s)) from evals group by task order by task"


def read_source(source: Source, manifest: str | os.PathLike[str] | None = None) -> Curve:
    """Read one curve, with what is known of its set-up.

    Args:
        source: a run directory, a CSV, JSON or JSON lines file, or a curve, which is taken as it is.
        manifest: JSON file of free names and values; None: `<source>.manifest.json` where there is one.

    Raises:
        Fp8DebugError: nothing there, or unreadable.
        UsageError: no curve in it.
    """
    if isinstance(source, Curve):
        curve = source
    elif is_url(source):
        curve = _read_run(run_path(source), str(source))
    else:
        path = Path(source)
        if not path.exists():
            raise Fp8DebugError(
                f"no such run or file: {path}; expected a run directory or a CSV or JSON file of losses"
            )
        curve = _read_run(path, str(source)) if path.is_dir() else read_file(path, str(source))
        beside = path.with_name(f"{path.name}.manifest.json"), path.with_suffix(".manifest.json")
        manifest = manifest or next((str(file) for file in beside if file.is_file()), None)
    if manifest is None:
        return curve
    facts, scores = read_manifest_file(Path(manifest))
    return replace(curve, facts={**(curve.facts or {}), **facts}, scores={**curve.scores, **scores})


def _read_run(path: RunPath, name: str) -> Curve:
    with open_run(path) as run:
        if run.notice is not None:
            raise Fp8DebugError(f"{run.notice}; record a run with `fp8debug attach train.py`")
        table = run.sql(STEPS).fetchnumpy()
        given = table["n_losses"] > 0
        if not given.any():
            raise Fp8DebugError(
                f"no loss was recorded in {path}; give it with `session.log(loss=...)`, or compare its loss curve as a "
                "CSV file"
            )
        return Curve(
            name,
            table["step"][given].astype(np.int64),
            _known(table["loss"][given], np.nan),
            series(table["grad_norm"][given]),
            # A step that the GradScaler skipped has an infinite norm by design.
            ~(np.ma.getmaskarray(table["grad_norm"]) | table["skipped"])[given],
            series(table["lr"][given]),
            series(table["tokens"][given]),
            kind="run",
            facts=facts_of_run(run.manifest) | _first_input(run),
            scores=dict(run.sql(_SCORES).fetchall()),
            run_path=run.path,
            notes=_notes(run),
        )


def _first_input(run: Run) -> dict[str, str]:
    """The first input of a layer at the first step of the run, when that is where the training began."""
    rows = run.sql(_FIRST_INPUT).fetchall()
    if not rows:
        return {}
    of, checksum, amin, amax = rows[0]
    return {FIRST_INPUT: json.dumps({"of": of, "checksum": int(checksum), "amin": amin, "amax": amax})}


def series(column: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Floats | None:
    """A column of STEPS, NaN where nothing was reported; None where it never was."""
    return None if np.ma.getmaskarray(column).all() else _known(column, np.nan)


def _known(column: np.ndarray[tuple[int], np.dtype[np.float64]], missing: float) -> Floats:
    filled: Floats = np.ma.filled(column.astype(np.float64), missing)
    return filled


def _notes(run: Run) -> tuple[str, ...]:
    return tuple(bad.message for bad in run.problems)
