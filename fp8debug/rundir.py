"""Where things are in a run directory, and the manifest (`run.json`) that describes the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from fp8debug.errors import Fp8DebugError
from fp8debug.schema import SCHEMA_VERSION

RUNS_FOLDER = "fp8debug-runs"
MANIFEST_NAME = "run.json"
LATEST_NAME = "latest"


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


class RunDir:
    """Paths inside one run directory. Creating the object touches nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def manifest_path(self) -> Path:
        return self.path / MANIFEST_NAME

    def table_folder(self, table: str, rank: int) -> Path:
        return self.path / table / f"rank={rank}"

    def part_path(self, table: str, rank: int, number: int) -> Path:
        return self.table_folder(table, rank) / f"part-{number:06d}.parquet"

    def lock_path(self, rank: int) -> Path:
        """A file the writer of `rank` keeps locked (flock) while it lives: a free lock tells a dead writer."""
        return self.path / f"rank={rank}.lock"

    def rank_path(self, rank: int) -> Path:
        """Where the process of `rank` describes itself."""
        return self.path / f"rank={rank}.json"

    def parts(self, table: str) -> list[Path]:
        """Finished Parquet parts of `table` over all ranks, in name order (temporary files left out)."""
        return sorted((self.path / table).glob("rank=*/part-*.parquet"))

    def read_manifest(self) -> Manifest:
        """Read `run.json`.

        Raises:
            Fp8DebugError: no such run, an unreadable manifest, or a run of a newer schema.
        """
        return parse_manifest(self.manifest_path, _read_text(self.path, self.manifest_path))

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace `run.json` atomically."""
        _replace(self.manifest_path, manifest)

    def create_manifest(self, manifest: Manifest) -> None:
        """Write `run.json` where there is none, never over another one."""
        if self.manifest_path.exists():
            return
        temporary = _write_beside(self.manifest_path, manifest)
        try:
            os.link(temporary, self.manifest_path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(temporary, self.manifest_path)
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()

    def write_rank(self, info: RankInfo) -> None:
        """Replace `rank=R.json` atomically."""
        _replace(self.rank_path(info.rank), info)

    def read_ranks(self) -> list[RankInfo]:
        """What each process said of itself, by rank; a file that cannot be read is left out."""
        found = []
        for path in self.path.glob("rank=*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                found.append(_rank_info(json.loads(path.read_text(encoding="utf-8"))))
        return sorted(found, key=lambda info: info.rank)


def _replace(path: Path, content: Manifest | RankInfo) -> None:
    os.replace(_write_beside(path, content), path)


def _write_beside(path: Path, content: Manifest | RankInfo) -> Path:
    temporary = path.with_suffix(f".json.tmp{os.getpid()}")
    temporary.write_text(json.dumps(asdict(content), indent=1, default=str) + "\n", encoding="utf-8")
    return temporary


def _read_text(run: Path, manifest: Path) -> str:
    if not run.exists():
        raise Fp8DebugError(f"no such run: {run}; `fp8debug runs` lists the runs there are")
    if not manifest.is_file():
        raise Fp8DebugError(
            f"not a run directory: {run} has no {MANIFEST_NAME}; expected a folder that `fp8debug attach` "
            "wrote; `fp8debug runs` lists the runs there are"
        )
    try:
        return manifest.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Fp8DebugError(f"cannot read {manifest}: {error}") from error


def parse_manifest(path: Path, text: str) -> Manifest:
    """Turn the text of a `run.json` into a `Manifest`; unknown keys are ignored.

    Raises:
        Fp8DebugError: not JSON, keys missing or of the wrong kind, or a newer schema.
    """
    try:
        raw = json.loads(text)
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
        values = _known_fields(Manifest, raw)
        values["layers"] = _layers(raw)
        return Manifest(**values)
    except (TypeError, AttributeError) as error:
        raise Fp8DebugError(f"{path} is not a run manifest: {error}") from error


def _rank_info(raw: dict[str, Any]) -> RankInfo:
    return RankInfo(**(_known_fields(RankInfo, raw) | {"layers": _layers(raw)}))


def _layers(raw: dict[str, Any]) -> list[LayerInfo]:
    return [LayerInfo(**_known_fields(LayerInfo, layer)) for layer in raw.get("layers", [])]


def _known_fields(kind: type[Any], raw: dict[str, Any]) -> dict[str, Any]:
    known = {f.name for f in fields(kind)}
    return {key: value for key, value in raw.items() if key in known}


def default_run_path(script: str, now: datetime, name: str | None = None, folder: str = RUNS_FOLDER) -> Path:
    """`fp8debug-runs/<script>-<YYYYmmdd-HHMMSS>[-<name>]`, relative to the working directory."""
    stem = safe_name(Path(script).stem or "run")
    suffix = f"-{safe_name(name)}" if name else ""
    return Path(folder) / f"{stem}-{now:%Y%m%d-%H%M%S}{suffix}"


def safe_name(text: str) -> str:
    """Replace what a file name should not hold."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._") or "run"


def list_runs(folder: Path) -> Iterator[RunDir]:
    """Runs directly below `folder`, oldest first by name of creation time in the manifest's folder."""
    if not folder.is_dir():
        return
    found = [p for p in folder.iterdir() if not p.is_symlink() and (p / MANIFEST_NAME).is_file()]
    for path in sorted(found, key=lambda p: (p.stat().st_mtime, p.name)):
        yield RunDir(path)


def find_run(path: str | None, folder: Path = Path(RUNS_FOLDER)) -> RunDir:
    """The run a user means: `path` when given, else the newest one below `folder`.

    Raises:
        Fp8DebugError: nothing there.
    """
    if path is not None:
        return RunDir(path)
    latest = folder / LATEST_NAME
    if (latest / MANIFEST_NAME).is_file():
        return RunDir(latest.resolve())
    runs = list(list_runs(folder))
    if not runs:
        raise Fp8DebugError(
            f"no run found: {folder}/ holds none; record one with `fp8debug attach train.py`, or name a run directory"
        )
    return runs[-1]
