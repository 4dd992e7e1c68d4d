"""From the debug logs of Transformer Engine to a run directory."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fp8debug import __version__
from fp8debug.analysis.importing.notes import Note, notes_of
from fp8debug.analysis.importing.parts import Parts
from fp8debug.analysis.importing.steps import read_steps
from fp8debug.analysis.importing.tally import Tally
from fp8debug.errors import UsageError
from fp8debug.rundir import MAX_RANKS, LayerInfo, Manifest, RunDir

TE_LOG = "te-log"
_RANK = re.compile(r"globalrank-(\d{1,6})")
_TENSORS = ("x", "w", "dy", "y", "dx", "dw")


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import came to."""

    path: str
    files: tuple[str, ...]
    ranks: tuple[int, ...]
    n_numbers: int
    statistics: tuple[str, ...]
    n_layers: int
    tensors: tuple[str, ...]
    n_steps: int
    first_step: int
    last_step: int
    n_unread: int
    """Lines that gave no number."""
    notes: tuple[Note, ...]


def import_te_logs(
    files: Sequence[Path],
    run: RunDir,
    *,
    name: str | None = None,
    command: Sequence[str] = (),
    begin: Callable[[], object] = lambda: None,
) -> Imported:
    """Write the numbers of debug logs as a run; nothing is left of it where that fails.

    Args:
        files: one a rank, which its name tells (`globalrank-3`), or several: then the later ones follow the earlier.
        run: where; a directory that is empty or not there yet.
        begin: called before the first file is written, when the logs have proved to be some.

    Raises:
        UsageError: a file that cannot be read, or that has no number of a tensor.
        OSError: the run cannot be written.
    """
    by_rank, tally, parts = ranks_of(files), Tally(), Parts(run)
    try:
        for number, step in enumerate(read_steps(by_rank, tally)):
            if number == 0:
                begin()
            parts.add_step(step, tally)
        if not tally.steps:
            raise UsageError(f"nothing is in {', '.join(map(str, files))}; expected logs that nvdlfw_inspect wrote")
        notes = notes_of(tally, by_rank)
        for note in notes:
            parts.add("events", min(by_rank), segment=0, kind=note.kind, message=note.message)
        parts.flush()
        run.create_manifest(_manifest(run, tally, by_rank, name, command))
    except BaseException:
        for part in parts.written:
            with contextlib.suppress(OSError):
                run.storage.remove(part)
        raise
    return Imported(
        path=str(run.path),
        files=tuple(map(str, files)),
        ranks=tuple(sorted(by_rank)),
        n_numbers=tally.n_numbers,
        statistics=tuple(sorted({kind.statistic for kind in tally.numbers})),
        n_layers=len(tally.layers),
        tensors=_in_order(tally.tensors),
        n_steps=len(tally.steps),
        first_step=min(tally.steps),
        last_step=max(tally.steps),
        n_unread=tally.n_unread.total(),
        notes=tuple(notes),
    )


def ranks_of(files: Sequence[Path]) -> dict[int, list[Path]]:
    """The files of each rank, in the order given; one whose name tells no rank is of rank 0.

    Raises:
        UsageError: a file that is given twice, or a rank beyond any training's.
    """
    found: dict[int, list[Path]] = {}
    for file in files:
        match = _RANK.search(file.name)
        rank = int(match[1]) if match else 0
        if rank >= MAX_RANKS:
            raise UsageError(f"{file} is of rank {rank}; expected one below {MAX_RANKS:,}")
        found.setdefault(rank, []).append(file)
    twice = [file for file in files if files.count(file) > 1]
    if twice:
        raise UsageError(f"{twice[0]} is given twice; expected each file once")
    return found


def _manifest(
    run: RunDir, tally: Tally, by_rank: Mapping[int, object], name: str | None, command: Sequence[str]
) -> Manifest:
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    began = tally.starts[0][0]
    return Manifest(
        run_id=run.path.name,
        command=list(command),
        created_at=began.replace(" ", "T") if began else now,
        name=name,
        versions={"fp8debug": __version__, "python": platform.python_version()},
        world_size=max(by_rank) + 1 if len(by_rank) > 1 else 1,
        options={"imported_from": TE_LOG},
        tensors=list(_in_order(tally.tensors)),
        layers=[_layer(layer) for layer in tally.layers],
        segments=[
            {"segment": segment, "started_at": time, "first_step": step, "command": list(command)}
            for segment, (time, step) in sorted(tally.starts.items())
        ],
        status="imported",
        closed_at=now,
    )


def _layer(name: str) -> LayerInfo:
    """What a log tells of a layer: that a module of Transformer Engine has this name."""
    return LayerInfo(name, name, "", "", 0, 0, matched=True, backend="transformer_engine")


def _in_order(tensors: set[str]) -> tuple[str, ...]:
    return tuple(tensor for tensor in _TENSORS if tensor in tensors)
