"""The runs below a folder, each in a few words; cheap enough for hundreds of them."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.liveness import liveness
from fp8debug.analysis.merge.layers import merged_layers
from fp8debug.errors import Fp8DebugError
from fp8debug.rundir import Manifest, RankInfo, RunDir, list_runs
from fp8debug.storage import LocalStorage, RunPath


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run as a list shows it."""

    path: str
    created_at: str | None
    name: str | None
    command: tuple[str, ...]
    script: str | None
    n_steps: int | None
    """Steps whose record is on disk, counted from step 0; None when that cannot be read."""
    n_layers: int | None
    """Captured layers."""
    status: str
    """As in a report; `unreadable` when the manifest is."""
    problem: str | None
    size_bytes: int


def list_entries(folder: RunPath) -> list[RunEntry]:
    """Runs directly below `folder`, or `folder` itself when it is a run; newest last.

    Raises:
        OSError: an object store that cannot be reached.
    """
    found = [RunDir(folder)] if RunDir(folder).exists() else list(list_runs(folder))
    return sorted((_entry(run) for run in found), key=lambda entry: (entry.created_at or "", entry.path))


def _entry(run: RunDir) -> RunEntry:
    size = run.storage.total_size()
    try:
        manifest = run.read_manifest()
    except Fp8DebugError as error:
        return RunEntry(str(run.path), None, None, (), None, None, None, "unreadable", str(error), size)
    return RunEntry(
        path=str(run.path),
        created_at=manifest.created_at,
        name=manifest.name,
        command=tuple(manifest.command),
        script=script_of(manifest),
        n_steps=_n_steps(run),
        n_layers=sum(layer.info.matched for layer in merged_layers(manifest, _other_ranks(run, manifest))),
        status=liveness(run, manifest).status,
        problem=manifest.status_reason,
        size_bytes=size,
    )


def _other_ranks(run: RunDir, manifest: Manifest) -> list[RankInfo]:
    return run.read_ranks() if manifest.world_size > 1 else []


def script_of(manifest: Manifest) -> str | None:
    """The Python file or, after -m, the module of the command; the whole command's first word when there is none."""
    words = manifest.command
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return word
        if word == "-m" and place + 1 < len(words) and place > 0:
            return words[place + 1]
    return words[0] if words else None


def _n_steps(run: RunDir) -> int | None:
    """Largest step in the newest part of `steps`, from its footer alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parts = run.part_names("steps")
    except Fp8DebugError:
        return None
    for part in reversed(parts):
        try:
            is_local = isinstance(run.storage, LocalStorage)
            footer = pq.read_metadata(
                run.storage.address(part) if is_local else pa.BufferReader(run.storage.read(part))
            )
            place = footer.schema.names.index("step")
            groups = [footer.row_group(i).column(place).statistics for i in range(footer.num_row_groups)]
            return int(max(group.max for group in groups if group is not None and group.has_min_max)) + 1
        except (OSError, pa.ArrowException, ValueError):
            continue
    return None
