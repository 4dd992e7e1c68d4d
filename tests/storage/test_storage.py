"""What a run asks of the place where it is, of a folder and of object stores alike."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from fp8debug.errors import UsageError
from fp8debug.storage import LocalStorage, Storage, storage_of


def test_files_are_written_read_listed_and_removed(storage: Storage) -> None:
    assert storage.names() == storage.top_names() == storage.names("tensors") == []
    assert not storage.exists("run.json")
    storage.replace("run.json", b"{}")
    storage.replace("run.json", b"{ }")
    with storage.writing("tensors/rank=0/part-000000.parquet") as file:
        file.write(b"PAR1")
        assert not storage.exists("tensors/rank=0/part-000000.parquet"), "it appears when it is whole"
    storage.replace("tensors_of_others/a", b"")
    assert storage.names() == ["run.json", "tensors/rank=0/part-000000.parquet", "tensors_of_others/a"]
    assert storage.names("tensors") == ["tensors/rank=0/part-000000.parquet"]
    assert storage.top_names() == ["run.json"]
    assert storage.read("run.json") == b"{ }"
    assert storage.size("tensors/rank=0/part-000000.parquet") == 4
    assert storage.exists("run.json")
    assert not storage.exists("tensors"), "a folder is no file"
    for _ in range(2):
        storage.remove("run.json")
    assert storage.top_names() == []


def test_what_is_not_there(storage: Storage) -> None:
    for ask in (storage.read, storage.size):
        with pytest.raises(FileNotFoundError):
            ask("run.json")
    assert storage.stamp("run.json") is None
    assert storage.is_held("rank=0.lock") is None


def test_a_file_that_fails_half_way_never_appears(storage: Storage) -> None:
    with pytest.raises(ZeroDivisionError), storage.writing("errors/rank=0/part-000000.parquet") as file:
        file.write(b"PAR1")
        raise ZeroDivisionError
    assert [name for name in storage.names() if "part" in name] == []


def test_one_of_many_creates(storage: Storage) -> None:
    storage.replace("other", b"")
    made: list[bytes] = []

    def create(content: bytes) -> None:
        if storage.create("run.json", content):
            made.append(content)

    threads = [threading.Thread(target=create, args=(b"%d" % i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if isinstance(storage, LocalStorage) or storage.address().startswith("s3:"):  # memory:// asks, then writes
        assert len(made) == 1
    assert storage.read("run.json") in made
    assert not storage.create("run.json", b"late")
    assert storage.read("run.json") in made


def test_another_file_has_another_stamp(storage: Storage) -> None:
    storage.replace("control.json", b'{"serial": 1}')
    stamp = storage.stamp("control.json")
    assert stamp == storage.stamp("control.json")
    storage.replace("control.json", b'{"serial": 22}')
    assert storage.stamp("control.json") not in (stamp, None)


def test_one_holds_until_it_gives_back(storage: Storage) -> None:
    held = storage.hold("rank=0.lock")
    assert held.excludes
    assert storage.is_held("rank=0.lock") is True
    with pytest.raises(BlockingIOError):
        storage.hold("rank=0.lock")
    held.refresh()
    for _ in range(2):
        held.release()
    assert not storage.is_held("rank=0.lock")
    again = storage.hold("rank=0.lock")
    assert storage.is_held("rank=0.lock") is True
    again.release()


def test_the_root_of_a_folder_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalStorage(tmp_path / "gone").replace("run.json", b"")


def test_packages_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(scheme: str) -> None:
        raise ImportError(f"Please install the package for {scheme}")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    with pytest.raises(UsageError, match=r"s3:// needs a package .*pip install 'fp8debug\[s3\]'"):
        storage_of("s3://bucket/run")
    with pytest.raises(UsageError, match=r"gs:// needs a package .*Please install the package for gs"):
        storage_of("gs://bucket/run")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"s3://... needs the package fsspec.*pip install 'fp8debug\[s3\]'"):
        storage_of("s3://bucket/run")
