"""What may be changed while a run is being recorded: a small file in the run directory that every rank re-reads.

The file says what is wanted from now on, all of it: a rank that missed an earlier one misses nothing. Its serial number
grows with each change.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fp8debug.config import BadValue
from fp8debug.errors import UsageError, nearest
from fp8debug.reading import parse_json
from fp8debug.rundir import Manifest
from fp8debug.settings import SETTINGS
from fp8debug.storage import RunPath, storage_of
from fp8debug.storage.base import Stamp

CONTROL_NAME = "control.json"
CHANGEABLE = ("layers", "exclude", "tensors", "every", "raw_every", "detail")
"""Fields of `CaptureOptions`."""
_MAY_BE_EMPTY = ("layers", "exclude", "detail")
_LAST_UNIX_S = 253_402_214_400.0
"""The end of the year 9999, the last that a calendar here has."""
_OWN = ("serial", "written_unix_s", "raw-now")


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What one control file asks for."""

    serial: int
    written_unix_s: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `CaptureOptions` to their values; what is not there stays as the run was started."""
    raw_now: int = 0
    """Serial of the last change that asked for the raw values of one step."""


def signature(path: RunPath) -> Stamp | None:
    """One stat call or request: another one when the file is another one; None when there is no file."""
    return storage_of(path.parent).stamp(path.name)


def read_control(path: RunPath) -> Control:
    """Read a control file.

    Raises:
        UsageError: it cannot be read, is no JSON object, or has an unknown key or a bad value.
    """
    try:
        raw = parse_json(_read(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path.name}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("serial"), int):
        raise UsageError(f"{path.name}: expected a JSON object with an integer `serial`")
    options = {key: value for key, value in raw.items() if key not in _OWN}
    written, raw_now = raw.get("written_unix_s", 0.0), raw.get("raw-now", 0)
    if not isinstance(written, (int, float)) or not 0 <= written < _LAST_UNIX_S or not isinstance(raw_now, int):
        raise UsageError(f"{path.name}: expected seconds since 1970 in written_unix_s and a serial in raw-now")
    return Control(
        serial=raw["serial"],
        written_unix_s=written,
        options=parsed_options(options, path.name),
        raw_now=raw_now,
    )


def parsed_options(given: Mapping[str, object], source: str) -> dict[str, Any]:
    """Check values as they are written, by their names in a file; returns fields of `CaptureOptions`.

    Raises:
        UsageError: an unknown key or a bad value, `source` named.
    """
    known = {SETTINGS[name].key: name for name in CHANGEABLE}
    values: dict[str, Any] = {}
    for written, value in given.items():
        key = written.replace("_", "-")
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {' or '.join(near)}" if near else f"expected some of {', '.join(known)}"
            raise UsageError(f"{source}: {written!r} cannot be changed in a running capture; {hint}")
        values[known[key]] = _parsed(known[key], value, source)
    return values


def _parsed(name: str, value: object, source: str) -> Any:
    setting = SETTINGS[name]
    if name in _MAY_BE_EMPTY and value in ([], ()):
        return ()
    try:
        return setting.parse(value)
    except BadValue as error:
        raise UsageError(f"{source}: {setting.key}: got {value!r}; expected {error}") from error


def _read(path: RunPath) -> str:
    return storage_of(path.parent).read(path.name).decode("utf-8")


def write_control(path: RunPath, control: Control) -> None:
    """Replace the file atomically."""
    content: dict[str, object] = {"serial": control.serial, "written_unix_s": control.written_unix_s}
    content |= {SETTINGS[name].key: value for name, value in control.options.items()}
    content["raw-now"] = control.raw_now
    storage_of(path.parent).replace(path.name, (json.dumps(content, indent=1) + "\n").encode("utf-8"))


def next_control(path: RunPath, manifest: Manifest, changes: Mapping[str, Any], *, raw_now: bool) -> Control:
    """What to write so that `changes` come on top of what is asked for already.

    A file from before the run was resumed, or one that cannot be read, lends its serial number alone.
    """
    before = in_force(path, manifest)
    serial = _last_serial(path, manifest) + 1
    return Control(
        serial=serial,
        written_unix_s=time.time(),
        options={**before.options, **changes},
        raw_now=serial if raw_now else before.raw_now,
    )


def in_force(path: RunPath, manifest: Manifest) -> Control:
    """What the file asks of this segment of the run; nothing, with serial 0, when there is none."""
    started = manifest.segments[-1].get("started_at") if manifest.segments else None
    try:
        found = read_control(path)
    except UsageError:
        return Control(serial=0)
    return Control(serial=0) if started is not None and found.written_unix_s < _unix_s(started) else found


def _unix_s(started_at: str) -> float:
    try:
        return datetime.fromisoformat(started_at).timestamp()
    except (ValueError, OverflowError):  # no time at all: what was asked for counts
        return 0.0


def _last_serial(path: RunPath, manifest: Manifest) -> int:
    serials = [change.get("serial", 0) for segment in manifest.segments for change in segment.get("changes", ())]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        serials.append(parse_json(_read(path))["serial"])
    return max((serial for serial in serials if isinstance(serial, int)), default=0)


def value_words(name: str, value: object) -> str:
    """The value of a changeable option for people: no pattern of layers takes all of them, none of the rest is none."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value)) or ("all" if name == "layers" else "none")
    return str(value)
