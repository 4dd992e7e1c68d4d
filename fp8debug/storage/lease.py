"""Exclusion where there are no locks: a small object that says who holds, and is written again while the holder lives.

The object is made by a conditional PUT, of which one succeeds. A holder that died leaves it behind. It is told by an
old heartbeat, or at once by a process of this machine that is no more; who wants to take over claims that first, by a
conditional PUT too. A holder that slept too long sees at its next heartbeat that another one holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from datetime import UTC, datetime
from typing import Protocol

HEARTBEAT_S = 30.0
DEAD_AFTER_S = 150.0
"""A holder whose last heartbeat is older has died: five were missed."""
GIVE_UP_S = 90.0
"""A holder that could not say for so long that it lives must count on being taken for dead soon."""


class Objects(Protocol):
    """What a lease asks of the store; see `Storage`."""

    def address(self, name: str = "") -> str:
        """What a person calls the object."""

    def read(self, name: str) -> bytes:
        """Its content."""

    def create(self, name: str, content: bytes) -> bool:
        """A conditional PUT."""

    def replace(self, name: str, content: bytes) -> None:
        """A PUT."""

    def remove(self, name: str) -> None:
        """Delete it."""

    def modified(self, name: str) -> datetime:
        """When it was last put, by the clock of the store."""


class Lease:
    """An exclusion that this process holds in an object store."""

    def __init__(self, storage: Objects, name: str, content: bytes, *, excludes: bool) -> None:
        self.excludes = excludes
        self._storage = storage
        self._name = name
        self._content = content
        self._process = os.getpid()
        self._mutex = threading.Lock()
        self._said_s = time.time()
        self._is_held = True

    def refresh(self) -> None:
        """Write the object again, unless that was done just now.

        Raises:
            OSError: somebody else has taken over, or the store could not be reached for too long.
        """
        with self._mutex:
            if not self._is_held or 0 <= time.time() - self._said_s < HEARTBEAT_S:
                return
            try:
                is_ours = self._is_ours()
                if is_ours:
                    self._storage.replace(self._name, self._content)
                    self._said_s = time.time()
            except OSError:
                if 0 <= time.time() - self._said_s < GIVE_UP_S:  # it may come back
                    return
                raise
            if not is_ours:
                raise OSError(f"{self._storage.address(self._name)} was taken by another process while this one paused")

    def release(self) -> None:
        """Delete the object; safe to call twice, and in a forked child, whose parent goes on holding."""
        if os.getpid() != self._process:
            return
        with self._mutex:
            if not self._is_held:
                return
            self._is_held = False
            with contextlib.suppress(OSError):  # out of reach: the heartbeat ends, which tells the same later
                if self._is_ours():
                    self._storage.remove(self._name)

    def _is_ours(self) -> bool:
        try:
            return not self.excludes or self._storage.read(self._name) == self._content
        except FileNotFoundError:
            return False


def take(storage: Objects, name: str) -> Lease:
    """Hold `name`.

    Raises:
        BlockingIOError: another process holds it, and lives.
        OSError: it cannot be written.
    """
    content = _who_we_are()
    if storage.create(name, content):
        excludes = not storage.create(name, b"{}")
        if not excludes:  # the store has no conditions, and has taken the second one too
            storage.replace(name, content)
        return Lease(storage, name, content, excludes=excludes)
    _take_over(storage, name, content)
    return Lease(storage, name, content, excludes=True)


def _take_over(storage: Objects, name: str, content: bytes) -> None:
    """Put `content` in the place of a holder that died; of several who try, one succeeds."""
    try:
        found = storage.read(name)
    except FileNotFoundError:  # given back this moment
        if storage.create(name, content):
            return
        found = storage.read(name)
    claim = f"{name}.claim"
    if not storage.create(claim, content):
        if _age_s(storage, claim) > DEAD_AFTER_S:
            storage.remove(claim)
        raise BlockingIOError(f"{storage.address(name)}: another process is about to take it")
    try:
        # Both times are of the store's clock, which this machine's may differ from.
        silent_s = (storage.modified(claim) - storage.modified(name)).total_seconds()
        if storage.read(name) != found or not (is_gone(found) or silent_s > DEAD_AFTER_S):
            raise BlockingIOError(f"{storage.address(name)}: {_words(found, silent_s)}")
        storage.replace(name, content)
    finally:
        storage.remove(claim)


def _age_s(storage: Objects, name: str) -> float:
    try:
        return (datetime.now(UTC) - storage.modified(name)).total_seconds()
    except FileNotFoundError:
        return 0.0


def _who_we_are() -> bytes:
    pid = os.getpid()
    who = {
        "host": socket.gethostname(),
        "pid": pid,
        "machine": _machine(),
        "process_started": _started(pid),
        "started_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "token": secrets.token_hex(8),
    }
    return (json.dumps(who) + "\n").encode()


def _words(content: bytes, silent_s: float) -> str:
    try:
        who = json.loads(content)
        holder = f"process {who['pid']} on {who['host']}"
    except (ValueError, LookupError, TypeError):
        holder = "another process"
    heard = f"{holder} was heard of {max(silent_s, 0):.0f} s ago"
    return f"{heard}; one that died is told after {DEAD_AFTER_S:.0f} s of silence"


def is_gone(content: bytes) -> bool:
    """Whether the holder that wrote this was a process of this machine that is no more."""
    try:
        who = json.loads(content)
        machine, pid, started = who["machine"], int(who["pid"]), who["process_started"]
    except (ValueError, LookupError, TypeError):
        return False
    return machine is not None and machine == _machine() and started is not None and started != _started(pid)


def _machine() -> str | None:
    """A name for what process numbers are told apart in: this boot of the kernel, and the container."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process was started, in ticks since boot; None when there is none, or one that has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, *rest = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else rest[18]
