"""Where things are in a run directory, and the manifest (`run.json`) that describes the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from fp8debug.config import CaptureOptions
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.generations import live_names, read_generation
from fp8debug.parts import Part, parse_part
from fp8debug.reading import known_fields, parse_json
from fp8debug.schema import SCHEMA_VERSION
from fp8debug.storage import LocalStorage, ObjectPath, RunPath, Storage, is_url, resolved, run_path, storage_of

RUNS_FOLDER = "fp8debug-runs"
MANIFEST_NAME = "run.json"
LATEST_NAME = "latest"
MAX_RANKS = 2**18
"""More than any training has: a manifest that says so is damaged."""


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """One GEMM layer that the model has, captured or not."""

    name: str
    raw_name: str
    class_name: str
    root: str
    in_features: int
    out_features: int
    matched: bool
    emulated: str | None = None
    """Recipe that its GEMMs compute with, such as `current, only dy`; None: it computes as the script has it."""
    backend: str = "modules"
    """How its operands are reached: modules | dispatch | transformer_engine."""
    kind: str = "Linear"
    """What the layer is to fp8debug, such as Linear, Conv1D, parameter or attention."""


@dataclass(slots=True)
class Manifest:
    """What `run.json` holds."""

    run_id: str
    command: list[str]
    created_at: str
    schema_version: int = SCHEMA_VERSION
    name: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    world_size: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    recipes: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    layers: list[LayerInfo] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    status: str = "running"  # running | closed | failed | interrupted | disabled
    status_reason: str | None = None
    closed_at: str | None = None


@dataclass(slots=True)
class RankInfo:
    """What `rank=R.json` holds: one process of the run, as it describes itself."""

    rank: int
    world_size: int
    host: str
    pid: int
    segment: int = 0
    roots: list[str] = field(default_factory=list)
    layers: list[LayerInfo] = field(default_factory=list)
    """Of its own models: under pipeline parallelism every rank has others."""
    n_steps: int = 0
    n_records: int = 0
    status: str = "running"
    status_reason: str | None = None
    control: dict[str, Any] = field(default_factory=dict)
    """What it has made of the control file: serial and step it follows, or why it refused."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """What an entry of `segments` may hold, of which types."""

    segment: int | None = None
    started_at: str | None = None
    first_step: int | None = None
    command: list[str] = field(default_factory=list)
    launch: str | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)


class RunDir:
    """Names inside one run directory, and what is read and written there. Creating the object touches nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: RunPath = run_path(path)
        """Where it is: a path, or an address in an object store."""
        self.storage: Storage = storage_of(self.path)

    @property
    def folder(self) -> Path:
        """The directory, for what only a file system can do.

        Raises:
            UsageError: the run is in an object store.
        """
        if isinstance(self.storage, LocalStorage):
            return self.storage.root
        raise UsageError(f"{self.path} is in an object store; expected a directory of this machine")

    @property
    def manifest_path(self) -> RunPath:
        """Path or address of `run.json`."""
        return self.path / MANIFEST_NAME

    def part_name(self, table: str, rank: int, first: int, last: int | None = None) -> str:
        """Name of the part of `table` that holds flush `first` of `rank`, or all from `first` to `last`."""
        return Part(table, rank, first, first if last is None else last).name

    def part_names(self, table: str) -> list[str]:
        """Names of the Parquet files of `table` that count, over all ranks, in order; superseded ones left out.

        Raises:
            Fp8DebugError: the file `CURRENT` cannot be used.
        """
        return live_names(self.storage, table)

    def ranks_with_parts(self, table: str) -> set[int]:
        """Ranks that have left rows of `table`, merged or not; raises Fp8DebugError as `part_names`."""
        parts = (parse_part(name) for name in self.storage.names(table))
        merged = read_generation(self.storage).through.get(table, {})
        return {part.rank for part in parts if part is not None} | {int(rank) for rank in merged}

    def lock_name(self, rank: int) -> str:
        """What the writer of `rank` holds while it lives: nobody's hold tells a dead writer."""
        return f"rank={rank}.lock"

    def rank_name(self, rank: int) -> str:
        """Where the process of `rank` describes itself."""
        return f"rank={rank}.json"

    def table_folder(self, table: str, rank: int) -> Path:
        """Where the parts of a rank are, in a directory of this machine."""
        return self.folder / table / f"rank={rank}"

    def part_path(self, table: str, rank: int, number: int) -> Path:
        """Path of the part of one flush, in a directory of this machine."""
        return self.folder / self.part_name(table, rank, number)

    def parts(self, table: str) -> list[Path]:
        """`part_names` as paths, in a directory of this machine."""
        return [self.folder / name for name in self.part_names(table)]

    def lock_path(self, rank: int) -> Path:
        """The file `lock_name`, in a directory of this machine."""
        return self.folder / self.lock_name(rank)

    def exists(self) -> bool:
        """Whether there is a manifest."""
        return self.storage.exists(MANIFEST_NAME)

    def read_manifest(self) -> Manifest:
        """Read `run.json`.

        Raises:
            Fp8DebugError: no such run, an unreadable manifest, or a run of a newer schema.
        """
        return parse_manifest(self.manifest_path, self._manifest_text())

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace `run.json` atomically; raises OSError."""
        self.storage.replace(MANIFEST_NAME, as_json(manifest))

    def create_manifest(self, manifest: Manifest) -> None:
        """Write `run.json` where there is none, never over another one; raises OSError."""
        self.storage.create(MANIFEST_NAME, as_json(manifest))

    def write_rank(self, info: RankInfo) -> None:
        """Replace `rank=R.json` atomically; raises OSError."""
        self.storage.replace(self.rank_name(info.rank), as_json(info))

    def read_ranks(self) -> list[RankInfo]:
        """What each process said of itself, by rank; a file that cannot be read is left out."""
        found: list[RankInfo] = []
        try:
            names = self.storage.top_names()
        except OSError:  # an object store that cannot be reached
            return found
        for name in names:
            if re.fullmatch(r"rank=\d+\.json", name):
                with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                    found.append(_rank_info(parse_json(self.storage.read(name).decode("utf-8"))))
        return sorted(found, key=lambda info: info.rank)

    def _manifest_text(self) -> str:
        try:
            return self.storage.read(MANIFEST_NAME).decode("utf-8")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Fp8DebugError(self._why_no_manifest()) from error
        except (OSError, UnicodeDecodeError) as error:
            raise Fp8DebugError(f"cannot read {self.manifest_path}: {error}") from error

    def _why_no_manifest(self) -> str:
        if isinstance(self.storage, LocalStorage) and not self.storage.root.exists():
            return f"no such run: {self.path}; `fp8debug runs` lists the runs there are"
        return (
            f"not a run directory: {self.path} has no {MANIFEST_NAME}; expected a folder that `fp8debug attach` "
            "wrote; `fp8debug runs` lists the runs there are"
        )


def as_json(content: Manifest | RankInfo) -> bytes:
    """As it is stored."""
    return (json.dumps(asdict(content), indent=1, default=str) + "\n").encode("utf-8")


def parse_manifest(path: PurePath, text: str) -> Manifest:
    """Turn the text of a `run.json` into a `Manifest`; unknown keys are ignored.

    Raises:
        Fp8DebugError: not JSON, keys missing or of the wrong kind, or a newer schema.
    """
    try:
        raw = parse_json(text)
    except ValueError as error:
        raise Fp8DebugError(f"{path} is not valid JSON ({error}); the run was cut while it was written") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("schema_version"), int):
        raise Fp8DebugError(f"{path} is not a run manifest: expected an object with an integer schema_version")
    if raw["schema_version"] > SCHEMA_VERSION:
        raise Fp8DebugError(
            f"{path} has schema version {raw['schema_version']}, this fp8debug reads up to {SCHEMA_VERSION}; "
            "upgrade fp8debug to read it"
        )
    try:
        values = known_fields(Manifest, raw)
        values["layers"] = _layers(raw)
        for segment in values.get("segments", ()):
            known_fields(_Segment, segment)
        known_fields(CaptureOptions, values.get("options", {}))
        _check_count("world_size", values.get("world_size", 1), 1)
        return Manifest(**values)
    except (TypeError, AttributeError) as error:
        raise Fp8DebugError(f"{path} is not a run manifest: {error}") from error


def _rank_info(raw: dict[str, Any]) -> RankInfo:
    info = RankInfo(**(known_fields(RankInfo, raw) | {"layers": _layers(raw)}))
    _check_count("world_size", info.world_size, 1)
    _check_count("rank", info.rank, 0)
    return info


def _check_count(name: str, value: int, least: int) -> None:
    if not least <= value <= MAX_RANKS:
        raise TypeError(f"{name} is {value}, expected {least} to {MAX_RANKS:,}")


def _layers(raw: dict[str, Any]) -> list[LayerInfo]:
    return [LayerInfo(**known_fields(LayerInfo, layer)) for layer in raw.get("layers", [])]


def default_run_path(script: str, now: datetime, name: str | None = None, folder: str = RUNS_FOLDER) -> Path:
    """`fp8debug-runs/<script>-<YYYYmmdd-HHMMSS>[-<name>]`, relative to the working directory."""
    stem = safe_name(Path(script).stem or "run")
    suffix = f"-{safe_name(name)}" if name else ""
    return Path(folder) / f"{stem}-{now:%Y%m%d-%H%M%S}{suffix}"


def safe_name(text: str) -> str:
    """Replace what a file name should not hold."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._") or "run"


def flush_interval_s(elapsed_s: float) -> float:
    """Seconds between flushes: a twentieth of the run so far, so a kill costs at most 5 % and files stay few."""
    return min(max(elapsed_s / 20, 1.0), 300.0)


def list_runs(folder: RunPath) -> Iterator[RunDir]:
    """Runs directly below `folder`: oldest first by the time of the manifest's folder; in an object store by name.

    Raises:
        OSError: an object store that cannot be reached.
    """
    if isinstance(folder, ObjectPath):
        runs = (RunDir(folder / name) for name in storage_of(folder).folder_names())
        yield from (run for run in runs if run.exists())
        return
    if not folder.is_dir():
        return
    found = [p for p in folder.iterdir() if not p.is_symlink() and (p / MANIFEST_NAME).is_file()]
    for path in sorted(found, key=lambda p: (p.stat().st_mtime, p.name)):
        yield RunDir(path)


def latest_name(folder: ObjectPath) -> str | None:
    """The run beside it that the object `latest` names; None when there is no such object, or it is something else.

    Raises:
        OSError: it cannot be read.
    """
    storage = storage_of(folder)
    try:
        name = storage.read(LATEST_NAME).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    is_run = re.fullmatch(r"[^/\s]{1,200}", name) is not None and storage.exists(f"{name}/{MANIFEST_NAME}")
    return name if is_run else None


def run_at(path: str | os.PathLike[str]) -> RunDir:
    """The run at a path or URL: links are followed, and `latest` in an object store.

    Raises:
        Fp8DebugError: an object store that cannot be reached.
        UsageError: an URL of a kind that nothing here can open.
    """
    run = RunDir(resolved(path))
    try:
        if isinstance(run.path, ObjectPath) and run.path.name == LATEST_NAME and not run.exists():
            name = latest_name(run.path.parent)
            return run if name is None else RunDir(run.path.with_name(name))
    except OSError as error:
        raise Fp8DebugError(f"cannot read {run.path}: {error}") from error
    return run


def find_run(path: str | None, folder: Path = Path(RUNS_FOLDER)) -> RunDir:
    """The run a user means: `path` when given, else the newest one below `folder`.

    Raises:
        Fp8DebugError: nothing there.
    """
    if path is not None:
        return run_at(path) if is_url(path) else RunDir(path)
    latest = folder / LATEST_NAME
    if (latest / MANIFEST_NAME).is_file():
        return RunDir(latest.resolve())
    runs = list(list_runs(folder))
    if not runs:
        raise Fp8DebugError(
            f"no run found: {folder}/ holds none; record one with `fp8debug attach train.py`, or name a run directory"
        )
    return runs[-1]
