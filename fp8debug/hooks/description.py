"""What a run and its ranks say of themselves: run.json by rank 0, rank=R.json by every rank, kept up to date."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from fp8debug.hooks.errands import Errands
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.resume import Resume
from fp8debug.hooks.roster import Roster
from fp8debug.rundir import MANIFEST_NAME, LayerInfo, Manifest, RankInfo, RunDir, as_json


class RunDescription:
    """Writes both files for one rank."""

    def __init__(
        self,
        run_dir: RunDir,
        manifest: Manifest,
        rank: int,
        resume: Resume | None,
        roster: Roster,
        recorder: Recorder,
        control_state: Callable[[], dict[str, Any]],
        errands: Errands,
    ) -> None:
        """Args:
        control_state: what this rank has made of the control file.
        """
        self.n_steps = 0
        self._run_dir = run_dir
        self._manifest = manifest
        self._rank = rank
        self._resume = resume
        self._roster = roster
        self._recorder = recorder
        self._control_state = control_state
        self._errands = errands
        self._n_layers_written = 0

    @property
    def is_stale(self) -> bool:
        """Whether layers have shown since it was written."""
        return len(self._roster.layers) != self._n_layers_written

    def begin(self) -> None:
        """Say that the run has begun; raises OSError."""
        if self._rank == 0:
            self._run_dir.write_manifest(self._manifest)
        elif self._manifest.segments[-1].get("launch") is not None:  # rank 0 can tell it from another run's
            self._run_dir.create_manifest(self._manifest)

    def write(self) -> None:
        """Say what the run is, on rank 0, and what this rank is, on every one."""
        self._n_layers_written = len(self._roster.layers)
        with contextlib.suppress(OSError):  # the parts tell the story without it
            if self._rank == 0:
                self._manifest.roots, self._manifest.layers = self._all_roots_and_layers()
                self._errands.put(MANIFEST_NAME, as_json(self._manifest))
            self._errands.put(self._run_dir.rank_name(self._rank), as_json(self._rank_info()))

    def end(self) -> None:
        """Write for the last time; a manifest too, should rank 0 never have come."""
        self.write()
        if self._rank:
            with contextlib.suppress(OSError):
                self._run_dir.create_manifest(self._manifest)

    def _all_roots_and_layers(self) -> tuple[list[str], list[LayerInfo]]:
        """Of all models of this segment, then those that only earlier segments had."""
        roots, layers = list(self._roster.roots), list(self._roster.layers)
        if self._resume is not None:
            known = {layer.name for layer in layers}
            layers += [layer for layer in self._resume.layers_before if layer.name not in known]
            roots += [root for root in self._resume.roots_before if root not in roots]
        return roots, layers

    def _rank_info(self) -> RankInfo:
        manifest = self._manifest
        return RankInfo(
            rank=self._rank,
            world_size=manifest.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            segment=0 if self._resume is None else self._resume.segment,
            roots=self._roster.roots,
            layers=self._roster.layers,
            n_steps=self.n_steps,
            n_records=self._recorder.n_records,
            status=manifest.status,
            status_reason=manifest.status_reason,
            control=self._control_state(),
        )
