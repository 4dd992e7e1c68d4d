"""What `fp8debug control` does: check a change as the ranks will, write it, and tell what is in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from fp8debug.analysis.liveness import liveness
from fp8debug.config import BadValue, CaptureOptions
from fp8debug.control import CHANGEABLE, CONTROL_NAME, Control, in_force, next_control, value_words, write_control
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.hooks.selection import Selection
from fp8debug.rundir import Manifest, RankInfo, RunDir, find_run
from fp8debug.settings import SETTINGS
from fp8debug.storage import is_url


def ask(run: str | None, given: Mapping[str, object], *, raw_now: bool) -> Control:
    """Write what is asked for, after the checks that the ranks will make.

    Args:
        run: run directory; None: the latest.
        given: values by their names in a file.

    Raises:
        UsageError: a value that cannot be, or no layer left.
        Fp8DebugError: no such run, or nobody who would follow.
    """
    run_dir = find_run(run)
    manifest = run_dir.read_manifest()
    status = liveness(run_dir, manifest).status
    if status != "running":
        raise Fp8DebugError(
            f"{run_dir.path} is not being recorded (status: {status}), so nobody would follow; expected a run whose "
            "training goes on"
        )
    changes = {name: value for key, value in given.items() for name, value in [_parsed(key, value)]}
    wanted = next_control(run_dir.path / CONTROL_NAME, manifest, changes, raw_now=raw_now)
    _require_match(_options(manifest, wanted), _layer_names(run_dir, manifest))
    write_control(run_dir.path / CONTROL_NAME, wanted)
    return wanted


def written_line(control: Control, run: str | None = None) -> str:
    """What was asked for, in one line; `run` is as the user named it."""
    asked = [f"{SETTINGS[name].key} {value_words(name, value)}" for name, value in control.options.items()]
    if control.raw_now == control.serial:
        asked.append("raw values of one step")
    when = "within 10 s or so" if run is not None and is_url(run) else "at its next step"
    return f"control {control.serial} written ({'; '.join(asked)}); each rank follows {when}"


def status_lines(run: str | None) -> Iterator[str]:
    """What is in force, and what each rank has made of it."""
    run_dir = find_run(run)
    manifest = run_dir.read_manifest()
    control = in_force(run_dir.path / CONTROL_NAME, manifest)
    options = _options(manifest, control)
    when = f"{datetime.fromtimestamp(control.written_unix_s).astimezone():%Y-%m-%d %H:%M:%S}" if control.serial else ""
    yield f"control {control.serial}, written {when}" if control.serial else "as started: no control was given"
    for name in CHANGEABLE:
        yield f"  {SETTINGS[name].key:<10}{value_words(name, options[name])}"
    for rank in run_dir.read_ranks():
        yield f"  rank {rank.rank:<5}{_state(rank, control)}"


def _state(rank: RankInfo, control: Control) -> str:
    serial, refused = rank.control.get("serial", 0), rank.control.get("refused")
    text = f"follows control {serial} since step {rank.control.get('step')}" if serial else "as started"
    if refused:
        return f"{text}; refused at step {rank.control.get('refused_at_step')}: {refused}"
    return text if serial == control.serial else f"{text}; has not come to control {control.serial} yet"


def _parsed(key: str, value: object) -> tuple[str, Any]:
    name = next(name for name in CHANGEABLE if SETTINGS[name].key == key)
    if value == []:
        return name, ()
    try:
        return name, SETTINGS[name].parse(value)
    except BadValue as error:
        shown = ", ".join(map(repr, value)) if isinstance(value, list) else repr(value)
        raise UsageError(f"--{key}: got {shown}; expected {error}") from error


def _options(manifest: Manifest, control: Control) -> dict[str, Any]:
    defaults = CaptureOptions()
    known = {field.name: getattr(defaults, field.name) for field in fields(CaptureOptions)}
    return {name: {**known, **manifest.options, **control.options}[name] for name in CHANGEABLE}


def _layer_names(run_dir: RunDir, manifest: Manifest) -> list[str]:
    """Of all ranks: under pipeline parallelism each has others."""
    layers = [*manifest.layers, *(layer for rank in run_dir.read_ranks() for layer in rank.layers)]
    return list(dict.fromkeys(layer.name for layer in layers))


def _require_match(options: Mapping[str, Any], names: Sequence[str]) -> None:
    selection = Selection.from_regexes(options["layers"], options["exclude"])
    if names and not any(map(selection.takes, names)):
        raise UsageError(selection.explain_no_match(names))
    if names and (unmatched := selection.unmatched(names)):
        raise UsageError(
            f"--layers {', '.join(map(repr, unmatched))} matches none of the {len(names)} GEMM layers; "
            "`fp8debug sql RUN_DIR 'from layers'` lists them"
        )
