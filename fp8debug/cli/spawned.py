"""What runs in a process that a watched script has started by torch.multiprocessing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fp8debug.cli.watched import Watch
from fp8debug.config import CaptureOptions
from fp8debug.hooks.ranks import note_spawned


@dataclass(frozen=True)
class WatchedFunction:
    """A function under capture, called with the index of its process as torch.multiprocessing does. Can be pickled."""

    function: Callable[..., Any]
    options: CaptureOptions
    n_processes: int
    launch: str
    command: tuple[str, ...]
    title: str

    def __call__(self, index: int, *args: Any) -> None:
        """Run the function; what it raises comes out."""
        note_spawned(index, self.n_processes, self.launch)
        watch = Watch(
            lambda: self.function(index, *args), self.title, self.options, command=self.command, has_parent=True
        )
        watch.start()
        if code := watch.call():
            sys.exit(code)
