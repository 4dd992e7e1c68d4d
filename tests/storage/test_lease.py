"""Exclusion by a small object and its heartbeat."""

from __future__ import annotations

import json
import os
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest

from fp8debug.storage import ObjectPath, lease, objects
from fp8debug.storage.objects import ObjectStorage

NAME = "rank=0.lock"


@pytest.fixture
def store(request: pytest.FixtureRequest) -> ObjectStorage:
    return ObjectStorage(ObjectPath(f"memory://{request.node.name}/run"))


def written_ago(store: ObjectStorage, name: str, seconds: float) -> None:
    """Let the store have got an object so long ago."""
    key = store.file_system._strip_protocol(store.address(name))
    store.file_system.store[key].modified = datetime.now(UTC) - timedelta(seconds=seconds)


def held_elsewhere(store: ObjectStorage) -> bytes:
    """A lock of a process that this machine knows nothing of."""
    content = json.dumps({"host": "far", "pid": 7, "machine": "another", "process_started": "1"}).encode()
    assert store.create(NAME, content)
    return content


def test_who_holds_is_said_and_given_back(store: ObjectStorage) -> None:
    held = store.hold(NAME)
    who = json.loads(store.read(NAME))
    assert who["pid"] == os.getpid()
    assert store.names() == [NAME]
    with pytest.raises(BlockingIOError, match=rf"process {os.getpid()} on \S+ was heard of 0 s ago.* 150 s of silence"):
        store.hold(NAME)
    held.release()
    assert store.names() == []


@pytest.mark.parametrize(("silent_s", "is_dead"), [(149.0, False), (151.0, True)])
def test_a_heartbeat_that_ended_is_taken_over(silent_s: float, is_dead: bool, store: ObjectStorage) -> None:
    held_elsewhere(store)
    written_ago(store, NAME, silent_s)
    assert store.is_held(NAME) is not is_dead
    if not is_dead:
        with pytest.raises(BlockingIOError, match="process 7 on far was heard of 149 s ago"):
            store.hold(NAME)
        return
    held = store.hold(NAME)
    assert json.loads(store.read(NAME))["pid"] == os.getpid()
    assert store.is_held(NAME) is True
    assert store.names() == [NAME], "the claim is gone"
    held.release()


def test_a_process_of_this_machine_that_is_no_more_is_known_at_once(store: ObjectStorage) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    pid = ended.pid
    store.create(NAME, lease._who_we_are().replace(b'"pid": %d' % os.getpid(), b'"pid": %d' % pid))
    assert store.is_held(NAME) is False
    store.hold(NAME).release()


def test_of_two_who_take_over_one_succeeds(store: ObjectStorage) -> None:
    found = held_elsewhere(store)
    written_ago(store, NAME, 1000)
    store.create(f"{NAME}.claim", b"of a third one")
    with pytest.raises(BlockingIOError, match="another process is about to take it"):
        store.hold(NAME)
    assert store.read(NAME) == found
    written_ago(store, f"{NAME}.claim", 1000)  # who claimed it has died too
    with pytest.raises(BlockingIOError):
        store.hold(NAME)
    store.hold(NAME).release()


def test_who_slept_too_long_notices(store: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.hold(NAME)
    second = b"{}"
    store.replace(NAME, second)
    first.refresh()  # it was said just now
    began_s = time.time()
    monkeypatch.setattr("time.time", lambda: began_s + 1000)
    with pytest.raises(OSError, match="was taken by another process while this one paused"):
        first.refresh()
    first.release()
    assert store.read(NAME) == second, "what another one holds is left alone"


def test_a_heartbeat_is_written_when_it_is_due(store: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    held = store.hold(NAME)
    written_ago(store, NAME, 100)
    held.refresh()
    assert (datetime.now(UTC) - store.modified(NAME)).total_seconds() > 99
    began_s = time.time()
    monkeypatch.setattr("time.time", lambda: began_s + 31)
    held.refresh()
    assert (datetime.now(UTC) - store.modified(NAME)).total_seconds() < 10
    monkeypatch.setattr(store, "replace", out_of_reach)
    monkeypatch.setattr("time.time", lambda: began_s + 31 + 89)
    held.refresh()  # it may come back
    monkeypatch.setattr("time.time", lambda: began_s + 31 + 91)
    with pytest.raises(OSError, match="out of reach"):
        held.refresh()


def out_of_reach(*_: object) -> None:
    raise OSError("out of reach")


def test_a_store_without_conditions_refuses_nobody_and_says_so(
    store: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.file_system.pipe_file
    monkeypatch.setattr(store.file_system, "pipe_file", lambda path, content, mode="overwrite": put(path, content))
    held = store.hold(NAME)
    assert not held.excludes
    assert json.loads(store.read(NAME))["pid"] == os.getpid()
    held.release()
    assert not store.exists(NAME)


def test_a_forked_child_leaves_the_lock_of_its_parent(store: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    held = store.hold(NAME)
    monkeypatch.setattr("os.getpid", lambda: -1)
    held.release()
    monkeypatch.undo()
    assert store.exists(NAME)
    held.release()
    assert not store.exists(NAME)


def test_a_file_is_sent_again_and_a_large_one_in_pieces(store: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "RETRY_AFTER_S", (0.0, 0.0))
    put, failures = store.file_system.pipe_file, [OSError("busy"), ValueError("a library's own")]

    def unsteady(path: str, content: bytes, mode: str = "overwrite") -> None:
        if failures:
            raise failures.pop()
        put(path, content, mode=mode)

    monkeypatch.setattr(store.file_system, "pipe_file", unsteady)
    with store.writing("a") as file:
        file.write(b"abc")
    assert store.read("a") == b"abc"
    monkeypatch.setattr(objects, "SPOOL_BYTES", 10)
    with store.writing("b") as file:
        file.write(b"0123456789" * 3)
    assert store.read("b") == b"0123456789" * 3
    failures += [OSError("busy")] * 3
    with pytest.raises(OSError, match="busy"), store.writing("c") as file:
        file.write(b"abc")
    assert store.names() == ["a", "b"]
