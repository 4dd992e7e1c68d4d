"""TensorBoard's event files, written with its own package."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from fp8debug.analysis.export.histograms import Octaves, octaves
from fp8debug.analysis.export.narrowing import Narrowing
from fp8debug.analysis.export.rows import nothing_selected
from fp8debug.analysis.export.scalars import Reading, readings, scalars_of, step_times
from fp8debug.analysis.run import Run
from fp8debug.errors import Fp8DebugError, UsageError

_NAMES = "events.out.tfevents.*.fp8debug"


def write_tensorboard(run: Run, folder: Path, narrowing: Narrowing | None = None, *, force: bool = False) -> Path:
    """Write one event file into `folder`, which is made if it is not there, and return its path.

    Tags are the names of scalars and `log2_magnitude/<layer>/<tensor>`. Files of other writers are left alone.

    Raises:
        UsageError: the package is missing, an earlier export is there (unless `force`), or nothing is selected.
        Fp8DebugError: nothing was recorded, or the file cannot be written.
    """
    RecordWriter = _record_writer()
    earlier = list(folder.glob(_NAMES))
    if earlier and not force:
        raise UsageError(f"-o {folder} holds an earlier export, {earlier[0].name}; add --force to replace it")
    start, is_new = _start(run), not folder.exists()
    target = folder / _NAMES.replace("*", f"{int(start):010d}")
    temporary = folder / f".fp8debug.tmp{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            _write(run, RecordWriter(file), narrowing or Narrowing(), start)
        for path in earlier:
            path.unlink()
        os.replace(temporary, target)
    except OSError as error:
        raise Fp8DebugError(f"cannot write to {folder}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()  # refused where something was written
    return target


def _record_writer() -> Any:
    try:
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise UsageError(
            "--to tensorboard needs the package tensorboard, which is not installed: "
            "pip install 'fp8debug[tensorboard]'"
        ) from error
    return RecordWriter


def _write(run: Run, writer: Any, narrowing: Narrowing, start: float) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    writer.write(Event(wall_time=start, file_version="brain.Event:2").SerializeToString())
    n_events = 0
    for event in _events(run, narrowing, start):
        writer.write(event.SerializeToString())
        n_events += 1
    if not n_events:
        raise nothing_selected(run, narrowing=narrowing)


def _events(run: Run, narrowing: Narrowing, start: float) -> Iterator[Any]:
    """One a step and operand: all scalars, then all histograms, so that each can be streamed."""
    from tensorboard.compat.proto.event_pb2 import Event

    for reading in readings(run, narrowing):
        yield Event(wall_time=_or(reading.unix_s, start), step=reading.step, summary=_scalars(reading))
    times = step_times(run)
    for entry in octaves(run, narrowing):
        yield Event(wall_time=_or(times.get(entry.step), start), step=entry.step, summary=_histogram(entry))


def _scalars(reading: Reading) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=scalar.name, simple_value=scalar.value) for scalar in scalars_of(reading)])


def _histogram(entry: Octaves) -> Any:
    """A bucket an octave on the axis of exponents, from e to e+1; TensorBoard draws no logarithmic one."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

    ends = [float(entry.first + place + 1) for place in range(len(entry.counts))]
    weighed = list(zip(entry.counts, (end - 0.5 for end in ends), strict=True))
    histogram = HistogramProto(
        min=float(entry.first),
        max=ends[-1],
        num=float(sum(entry.counts)),
        sum=sum(count * middle for count, middle in weighed),
        sum_squares=sum(count * middle**2 for count, middle in weighed),
        bucket_limit=ends,
        bucket=[float(count) for count in entry.counts],
    )
    tag = f"log2_magnitude/{entry.operand.layer}/{entry.operand.tensor}"
    return Summary(value=[Summary.Value(tag=tag, histo=histogram)])


def _or(unix_s: float | None, start: float) -> float:
    return start if unix_s is None else unix_s


def _start(run: Run) -> float:
    """When the run began: the time of what has no time of its own."""
    try:
        return datetime.fromisoformat(run.manifest.created_at).timestamp()
    except ValueError:
        return 0.0
