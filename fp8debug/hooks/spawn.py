"""Processes that a script starts: those of torch.multiprocessing are reached, the others are counted.

Nothing of the script is changed; a few entry points are wrapped while we watch and put back afterwards.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
_TRAINS = re.compile(r"python(\d+(\.\d+)*)?|torchrun|accelerate|accelerate-launch|deepspeed|srun|mpirun|mpiexec")
_OURS = "__wrapped__"


class SpawnWatch:
    """Watches how processes are started while a script runs."""

    def __init__(self, reach: Callable[[Function, int], Function]) -> None:
        """Make a watch.

        Args:
            reach: given the function that `torch.multiprocessing` is to run and the number of processes, returns one
                that can be pickled and runs it under capture.
        """
        self._reach = reach
        self._reaching = False
        self._process = os.getpid()
        self._wrapped: list[tuple[Any, str, Function]] = []
        self.n_multiprocessing = 0
        """Processes started by multiprocessing that know nothing of us; forked ones fall silent by themselves."""
        self.n_subprocess = 0
        """Interpreters and launchers started by subprocess."""

    def start(self) -> None:
        """Begin to watch."""
        for name in ("torch.multiprocessing.spawn", "torch.multiprocessing"):
            if name in sys.modules:
                self._wrap(sys.modules[name], "start_processes", self._start_processes)
        self._wrap(multiprocessing.process.BaseProcess, "start", self._start_process)
        self._wrap(subprocess.Popen, "__init__", self._start_command)

    def stop(self) -> None:
        """Put back what is still ours."""
        for owner, name, wrapper in self._wrapped:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, getattr(wrapper, _OURS))
        self._wrapped.clear()

    def unreached(self) -> str | None:
        """Words for the processes that are not watched; None when there is none."""
        ways = {"multiprocessing": self.n_multiprocessing, "subprocess": self.n_subprocess}
        told = [f"{count} by {way}" for way, count in ways.items() if count]
        return f"the script started processes that are not watched ({', '.join(told)})" if told else None

    def _wrap(self, owner: Any, name: str, around: Function) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() != self._process:
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name, wrapper))

    def _start_processes(
        self, original: Function, fn: Function, args: Any = (), nprocs: int = 1, *rest: Any, **more: Any
    ) -> Any:
        self._reaching = True
        try:
            return original(self._reach(fn, nprocs), args, nprocs, *rest, **more)
        finally:
            self._reaching = False

    def _start_process(self, original: Function, process: Any) -> Any:
        if not self._reaching and getattr(process, "_start_method", None) != "fork":
            self.n_multiprocessing += 1
        return original(process)

    def _start_command(self, original: Function, popen: Any, args: Any = (), *rest: Any, **more: Any) -> Any:
        first = args.split()[0] if isinstance(args, str) and args.split() else args
        if isinstance(first, (list, tuple)) and first:
            first = first[0]
        if isinstance(first, (str, os.PathLike)) and _TRAINS.fullmatch(os.path.basename(os.fspath(first))):
            self.n_subprocess += 1
        return original(popen, args, *rest, **more)
