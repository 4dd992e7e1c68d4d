"""From what a person asked to watch to snapshots of it: finds the run, waits for it, goes on when it is replaced."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb

from fp8debug.analysis.live.records import Snapshot, Waiting
from fp8debug.analysis.live.snapshot import take_snapshot
from fp8debug.analysis.live.tail import Tail
from fp8debug.analysis.liveness import Liveness, liveness
from fp8debug.errors import Fp8DebugError
from fp8debug.rundir import RUNS_FOLDER, Manifest, RunDir, find_run, run_at
from fp8debug.storage import is_url

_LAST_WORDS_S = 0.5


class Follower:
    """Looks at a run again and again.

    Args:
        path: the run directory or its URL, which need not be there yet. None: the newest run in `fp8debug-runs` that
            has not ended, or the next one that begins there.
        top: entries of each list of a snapshot.
    """

    def __init__(self, path: str | None, *, top: int) -> None:
        self._path = path
        self._top = top
        self._tail: Tail | None = None
        self._run_id = ""
        self._was_dead = False

    @property
    def is_far(self) -> bool:
        """Whether the run is in an object store, where each look costs requests."""
        return self._path is not None and is_url(self._path)

    def look(self) -> Snapshot | Waiting:
        """What is known now.

        Raises:
            Fp8DebugError: something is there that cannot be read; the next look may succeed.
        """
        run = self._find() if self._tail is None else self._tail.run
        if isinstance(run, Waiting):
            return run
        try:
            if not run.exists():
                self.close()
                return Waiting(f"{run.path} is gone")
            manifest, alive = self._state_of(run)
            tail = self._tail_of(run, manifest)
            with tail.look():
                return take_snapshot(tail, manifest, alive, self._top)
        except (OSError, duckdb.Error) as error:
            raise Fp8DebugError(f"cannot read {run.path}: {str(error).splitlines()[0]}") from error

    def close(self) -> None:
        """Let go of the run; a later look finds it anew."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _state_of(self, run: RunDir) -> tuple[Manifest, Liveness]:
        """What the manifest says and whether a writer lives; read again before a run is said to be dead.

        A writer that ends gives its lock back a moment before it says how it ended.
        """
        manifest = run.read_manifest()
        alive = liveness(run, manifest)
        if alive.status == "killed" and not self._was_dead:
            time.sleep(_LAST_WORDS_S)
            manifest = run.read_manifest()
            alive = liveness(run, manifest)
        self._was_dead = alive.status == "killed"
        return manifest, alive

    def _tail_of(self, run: RunDir, manifest: Manifest) -> Tail:
        if self._tail is not None and manifest.run_id != self._run_id:  # another one in its place
            self.close()
        if self._tail is None:
            serves = bool(manifest.options.get("inference"))
            self._tail, self._run_id = Tail(run, is_inference=serves), manifest.run_id
        return self._tail

    def _find(self) -> RunDir | Waiting:
        if self._path is None:
            return _newest_unended()
        run = run_at(self._path)
        if run.exists():
            return run
        if isinstance(run.path, Path) and run.path.exists():
            return Waiting(f"{self._path} is there, but no run in it yet")
        return Waiting(f"{self._path} is not there yet")


def _newest_unended() -> RunDir | Waiting:
    try:
        run = find_run(None)
        status = liveness(run, run.read_manifest()).status
    except Fp8DebugError:
        return Waiting(f"no run in {RUNS_FOLDER}/ yet")
    if status == "running":
        return run
    return Waiting(f"no run goes on in {RUNS_FOLDER}/; {run.path.name}, the newest one, has ended")
