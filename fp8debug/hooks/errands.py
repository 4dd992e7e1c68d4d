"""Small requests to a store that is far away, so that no training waits for one.

In a folder they are done at once, by who asks. For an object store a thread does them in order, and again and again
what has to be asked from time to time.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fp8debug.storage import Storage

LAST_S = 30.0
"""How long the end of the training waits for what is still to be done."""


@dataclass(slots=True)
class _Round:
    """What is done again and again."""

    every_s: float
    action: Callable[[], object]
    due_s: float


class Errands:
    """Does things for `storage`, now or soon."""

    def __init__(self, storage: Storage) -> None:
        self.is_far = storage.path is not None
        """Whether a thread does them."""
        self._storage = storage
        self._documents: dict[str, bytes] = {}
        self._actions: deque[Callable[[], object]] = deque()
        self._rounds: list[_Round] = []
        self._changed = threading.Condition()
        self._ends = False
        self._thread: threading.Thread | None = None

    def put(self, name: str, content: bytes) -> None:
        """Replace a file; of several contents that wait, the last one is written.

        Raises:
            OSError: it cannot be written, in a folder. What goes wrong far away is not told.
        """
        if not self.is_far:
            self._storage.replace(name, content)
            return
        with self._changed:
            self._documents[name] = content
        self._wake()

    def later(self, action: Callable[[], object]) -> None:
        """Do something when there is time; in a folder at once, with what it raises."""
        if not self.is_far:
            action()
            return
        with self._changed:
            self._actions.append(action)
        self._wake()

    def every(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something again and again, far away alone."""
        if self.is_far:
            with self._changed:
                self._rounds.append(_Round(seconds, action, time.monotonic() + seconds))
            self._wake()

    def before_exit(self, method: Callable[[], object]) -> None:
        """Far away alone, call a method of what still lives when the interpreter begins to end.

        At `atexit` it would be too late: no request finds its host any more, since threads of executors are gone.
        """
        register = getattr(threading, "_register_atexit", None)
        if not self.is_far or register is None:
            return
        reference = weakref.WeakMethod(method)

        def call() -> None:
            live = reference()
            if live is not None:
                live()

        with contextlib.suppress(RuntimeError):  # it ends already
            register(call)

    def close(self) -> None:
        """Do what waits, for `LAST_S` seconds at most, and nothing any more after that."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LAST_S)

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None and not self._ends:
                self._thread = threading.Thread(target=self._work, name="fp8debug-errands", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _work(self) -> None:
        while (action := self._next()) is not None:
            with contextlib.suppress(Exception):  # the store is out of reach; the writer will say so
                action()

    def _next(self) -> Callable[[], object] | None:
        """Wait for the next thing to do; None when there will be none."""
        with self._changed:
            while True:
                if self._actions:
                    return self._actions.popleft()
                if self._documents:
                    name = next(iter(self._documents))
                    content = self._documents.pop(name)
                    return lambda: self._storage.replace(name, content)
                if self._ends:
                    return None
                now = time.monotonic()
                for turn in self._rounds:
                    if turn.due_s <= now:
                        turn.due_s = now + turn.every_s
                        return turn.action
                self._changed.wait(min((turn.due_s for turn in self._rounds), default=now + 60.0) - now)
