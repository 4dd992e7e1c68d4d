"""Where a setting comes from: the command line, the environment, a configuration file, or the default.

The only module that knows the names of all settings in all sources; what it cannot place it names, with its source.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fp8debug import config
from fp8debug.config import BadValue, CaptureOptions
from fp8debug.errors import UsageError, nearest
from fp8debug.reading import is_file, parse_json, parse_toml, read_text

PREFIX = "FP8DEBUG_"
RUN_DIR_VARIABLE = "FP8DEBUG_RUN_DIR"
"""Set by a launcher for all the ranks that it starts; stronger than FP8DEBUG_OUT."""
CONFIG_VARIABLE = "FP8DEBUG_CONFIG"
FILE_NAME = "fp8debug.toml"
LAUNCH_VARIABLE = "FP8DEBUG_LAUNCH"
"""A text of one's choice that all ranks of one launch share, and no other launch has; launchers of ours set it."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """One field of `CaptureOptions` as a person writes it, on the command line, in a variable or in a file."""

    key: str
    """Its name in a configuration file; `--<key>` on the command line, FP8DEBUG_<KEY> in the environment."""
    parse: Callable[[Any], Any]
    """From a string or a TOML value to the field's type; raises BadValue or UsageError."""
    in_file: bool = True
    """Whether a file may set it: what holds for one start only may not."""

    @property
    def environment(self) -> str:
        return PREFIX + self.key.replace("-", "_").upper()


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """What a configuration file says of the rules that findings come from."""

    source: str = ""
    """The file, for messages."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """`[thresholds]`: numbers of the candidate rule, by name."""
    rules: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """`[rules.<name>]`: severity, enabled and parameters of one rule."""
    files: tuple[str, ...] = ()
    """`rule-files`: the user's own rules, paths relative to the configuration file."""


SETTINGS = {
    "layers": _Setting("layers", config.parse_regexes),
    "exclude": _Setting("exclude", config.parse_regexes),
    "tensors": _Setting("tensors", config.parse_tensors),
    "every": _Setting("every", config.parse_count(1)),
    "first": _Setting("first", config.parse_count(0)),
    "steps": _Setting("steps", config.parse_steps),
    "raw_every": _Setting("raw-every", config.parse_count(0)),
    "recipes": _Setting("recipe", config.parse_recipes),
    "rolls": _Setting("rolls", config.parse_choice(*config.ROLLS)),
    "engine": _Setting("engine", config.parse_choice(*config.ENGINES)),
    "backend": _Setting("backend", config.parse_choice(*config.BACKENDS)),
    "attention": _Setting("attention", config.parse_flag),
    "inference": _Setting("inference", config.parse_flag),
    "trigger": _Setting("trigger", config.parse_triggers),
    "flight_memory": _Setting("flight-memory", config.parse_count(1)),
    "detail": _Setting("detail", config.parse_some(*config.DETAILS, none="none")),
    "accumulation": _Setting("accumulation", config.parse_some(*config.ACCUMULATIONS)),
    "probe_memory": _Setting("probe-memory", config.parse_count(0)),
    "on_full": _Setting("on-full", config.parse_choice(*config.ON_FULL)),
    "max_bytes": _Setting("max-bytes", config.parse_size),
    "plan": _Setting("plan", config.parse_text),
    "emulate": _Setting("emulate", config.parse_recipe_text),
    "keep_bf16": _Setting("keep-bf16", config.parse_regexes),
    "emulate_only": _Setting("emulate-only", config.parse_some(*config.EMULATED_PARTS)),
    "out": _Setting("out", config.parse_text),
    "name": _Setting("name", config.parse_text),
    "force": _Setting("force", config.parse_flag, in_file=False),
    "resume": _Setting("resume", config.parse_text, in_file=False),
    "resume_step": _Setting("resume-step", config.parse_count(0), in_file=False),
    "seed": _Setting("seed", config.parse_count(0)),
    "list_layers": _Setting("list-layers", config.parse_flag, in_file=False),
    "quiet": _Setting("quiet", config.parse_flag),
}
"""Field of `CaptureOptions` to how it is written."""

_OF_RULES = ("thresholds", "rules", "rule-files")
"""What a configuration file says to the analysis, not to the capture."""


def load_options(
    given: Mapping[str, object],
    *,
    config_file: str | None = None,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> CaptureOptions:
    """Options from, in order of precedence: `given`, the environment, one configuration file, the defaults.

    Args:
        given: field name to value, from the command line; None and empty lists are not given.
        config_file: TOML file; default: FP8DEBUG_CONFIG, else the nearest fp8debug.toml or pyproject.toml with
            [tool.fp8debug].
        environment: variables; those that begin with FP8DEBUG_ are ours.
        folder: where the search for it starts, upwards; default: the working directory.

    Raises:
        UsageError: an unknown key or a bad value, with its source; a configuration file that cannot be read.
    """
    values = _from_file(config_file or environment.get(CONFIG_VARIABLE), folder or Path.cwd())
    only_in_file = "exclude" in values
    values |= (told := _from_environment(environment))
    for name, value in given.items():
        if value not in (None, [], ()):
            setting = SETTINGS[name]
            values[name] = _parsed(setting, f"--{setting.key}", value)
    only_in_file = only_in_file and "exclude" not in told and given.get("exclude") in (None, [], ())
    return CaptureOptions(**values, exclude_must_match=not only_in_file)


def load_rule_settings(
    config_file: str | None = None, environment: Mapping[str, str] = os.environ, folder: Path | None = None
) -> RuleSettings:
    """What the configuration file says of the rules; the file is found as `load_options` finds it.

    Raises:
        UsageError: a file that cannot be read, or a value of the wrong form.
    """
    named = config_file or environment.get(CONFIG_VARIABLE)
    source, table = _read_table(Path(named)) if named else _nearest_table(folder or Path.cwd())
    given = {key.replace("_", "-"): value for key, value in table.items()}
    rules = _table_of(given, "rules", source)
    for name in rules:
        _table_of(rules, name, f"{source}: rules")
    try:
        files = config.parse_texts(given["rule-files"]) if "rule-files" in given else ()
    except BadValue as error:
        raise UsageError(f"{source}: rule-files: got {given['rule-files']!r}; expected {error}") from error
    home = Path(source.removesuffix(" [tool.fp8debug]")).parent
    return RuleSettings(
        source, _table_of(given, "thresholds", source), rules, tuple(str(home / file) for file in files)
    )


def _table_of(given: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    table = given.get(key, {})
    if not isinstance(table, dict):
        raise UsageError(f"{source}: {key} is {table!r}; expected a table, [{key}]")
    return table


def as_environment(given: Mapping[str, object], config_file: str | None = None) -> dict[str, str]:
    """Variables that mean to another process what `given` and `config_file` mean to `load_options` here."""
    told = {SETTINGS[name].environment: value for name, value in given.items() if value not in (None, [], ())}
    variables = {
        name: json.dumps(list(value)) if isinstance(value, (list, tuple)) else str(value)
        for name, value in told.items()
    }
    return variables | ({} if config_file is None else {CONFIG_VARIABLE: os.path.abspath(config_file)})


def _from_variable(text: str) -> str | list[str]:
    """A list is written as JSON; everything else is text, also a regex that begins like one."""
    if text.startswith("["):
        try:
            value = parse_json(text)
        except ValueError:
            return text
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
    return text


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    known = {setting.environment: name for name, setting in SETTINGS.items()} | {RUN_DIR_VARIABLE: "out"}
    ours = {name for name, value in environment.items() if name.startswith(PREFIX) and value}
    ours -= {CONFIG_VARIABLE, LAUNCH_VARIABLE}
    for variable in sorted(ours - set(known)):
        raise _unknown("environment", variable, [*known, CONFIG_VARIABLE, LAUNCH_VARIABLE])
    return {
        name: _parsed(SETTINGS[name], variable, _from_variable(environment[variable]))
        for variable, name in known.items()
        if variable in ours
    }


def _from_file(named: str | None, folder: Path) -> dict[str, Any]:
    source, table = _read_table(Path(named)) if named else _nearest_table(folder)
    known = {setting.key: name for name, setting in SETTINGS.items() if setting.in_file}
    values: dict[str, Any] = {}
    for written, value in table.items():
        key = written.replace("_", "-")
        if key in _OF_RULES:
            continue
        if key not in known:
            raise _unknown(source, written, [*known, *_OF_RULES])
        values[known[key]] = _parsed(SETTINGS[known[key]], f"{source}: {written}", value)
    return values


def _nearest_table(folder: Path) -> tuple[str, dict[str, Any]]:
    """Of the nearest folder upwards that has fp8debug.toml, or a pyproject.toml with [tool.fp8debug]."""
    for place in (folder, *folder.parents):
        if (place / FILE_NAME).is_file():
            return _read_table(place / FILE_NAME)
        path = place / "pyproject.toml"
        if is_file(path):
            table = _read_toml(path).get("tool", {}).get("fp8debug")
            if table is not None:
                return f"{path} [tool.fp8debug]", _as_table(path, table)
    return "", {}


def _read_table(path: Path) -> tuple[str, dict[str, Any]]:
    whole = _read_toml(path)
    table = whole.get("tool", {}).get("fp8debug") if isinstance(whole.get("tool"), dict) else None
    if table is not None or path.name == "pyproject.toml":
        return f"{path} [tool.fp8debug]", _as_table(path, table or {})
    return str(path), whole


def _as_table(path: Path, table: object) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.fp8debug is {table!r}; expected a table, [tool.fp8debug]")
    return table


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_text(path))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; expected a TOML file with fp8debug's options"
        ) from error
    except ValueError as error:  # TOML that does not parse, or bytes that are no UTF-8
        raise UsageError(f"{path} is not valid TOML: {error}; mend it, or name another file with --config") from error


def _unknown(source: str, key: str, known: list[str]) -> UsageError:
    bare = {name.removeprefix(PREFIX): name for name in known}
    near = [bare[name] for name in nearest(key.removeprefix(PREFIX), bare)]
    hint = f"did you mean {' or '.join(near)}" if near else f"expected one of {', '.join(known)}"
    return UsageError(f"{source}: unknown setting {key!r}; {hint}")


def _parsed(setting: _Setting, source: str, value: object) -> Any:
    try:
        return setting.parse(value)
    except BadValue as error:
        shown = ", ".join(map(repr, value)) if isinstance(value, list) else repr(value)
        raise UsageError(f"{source}: got {shown}; expected {error}") from error
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error
