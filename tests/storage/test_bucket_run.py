"""Runs that are recorded into a bucket and read from there."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import fsspec.asyn
import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.analysis.catalog import list_entries
from fp8debug.analysis.copying import LocalCopy
from fp8debug.analysis.liveness import liveness
from fp8debug.analysis.query import run_query
from fp8debug.analysis.report import build_report
from fp8debug.analysis.run import open_run
from fp8debug.cli.commander import ask
from fp8debug.config import CaptureOptions
from fp8debug.control import CONTROL_NAME
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.hooks import control, place
from fp8debug.hooks.errands import Errands
from fp8debug.hooks.session import Session
from fp8debug.hooks.writer import PartWriter
from fp8debug.rundir import RunDir, find_run
from fp8debug.storage import ObjectPath, Storage, storage_of
from fp8debug.storage.objects import ObjectStorage

# Waits to be killed after three steps, with a forked child behind it that ends as a script does.
SCRIPT = """
import os, sys, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 3 and len(sys.argv) > 1:
        if os.fork() == 0:
            sys.exit()
        os.wait()
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
        os.kill(os.getpid(), 9)
    time.sleep(0.4 if len(sys.argv) > 1 else 0)
"""


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def train(session: Session, model: nn.Module, n_steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    session.flush()


def recorded(url: str, **options: Any) -> RunDir:
    model = nn.Linear(8, 8)
    with fp8debug.attach(model, run_dir=url, every=1, detail="none", engine="torch", quiet=True, **options) as session:
        train(session, model, 2)
    return RunDir(url)


def test_a_real_process_is_killed_and_resumed(
    warm_python: Any, s3_environment: dict[str, str], bucket: str, tmp_path: Path
) -> None:
    url, go = f"{bucket}/runs/a", tmp_path / "go"
    run = RunDir(url)
    (tmp_path / "train.py").write_text(SCRIPT)
    attach = ["-m", "fp8debug", "attach", "--every", "1", "--detail", "none"]
    codes: list[int] = []

    def first() -> None:
        done = warm_python.run(tmp_path, *attach, "--out", url, "train.py", str(go), **s3_environment)
        codes.append(done.returncode)

    thread = threading.Thread(target=first)
    thread.start()
    until(lambda: run.storage.names("steps"))
    assert liveness(run, run.read_manifest()).status == "running"
    with pytest.raises(UsageError, match=r"is being written by another process; give another --out"):
        place.check_run_path(ObjectPath(url), force=False)
    with pytest.raises(Fp8DebugError, match=r"two runs never mix.*process \d+ on \S+ was heard of"):
        PartWriter(run, 0).start()
    go.touch()
    thread.join()
    assert codes == [-9]
    assert liveness(run, run.read_manifest()).status == "killed"
    assert [entry.status for entry in list_entries(ObjectPath(url).parent)] == ["killed"]

    done = warm_python.run(tmp_path, *attach, "--resume", url, "train.py", **s3_environment)
    assert done.returncode == 0, done.stderr
    assert "recorded" in done.stderr and url in done.stderr
    assert run.read_manifest().status == "closed"
    assert "rank=0.lock" not in run.storage.names(), "nobody holds it any more"
    assert find_run(f"{bucket}/runs/latest").path == ObjectPath(url)

    local = tmp_path / "local"
    for name in run.storage.names():
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_bytes(run.storage.read(name))
    with open_run(url) as far, open_run(local) as near:
        assert far.sql("select max(segment) from steps").fetchall() == [(1,)]
        reports = [asdict(build_report(opened)) for opened in (far, near)]
    for report in reports:
        report["run"].pop("path")
    assert reports[0] == reports[1]


def test_a_query_sees_the_run_alone(bucket: str, tmp_path: Path) -> None:
    run = recorded(f"{bucket}/a", raw_every=1)
    storage_of(bucket).replace("secret.csv", b"a,b\n1,2\n")
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    with open_run(run.path) as opened:
        folder = Path(opened.folder)
        assert not (folder / "values").exists(), "copied when it is asked about"
        assert run_query(opened, 'select count(*) from "values"').fetchall()[0][0] > 0
        assert (folder / "values").exists()
        for file in (f"{bucket}/secret.csv", f"{run.path}/run.json", str(tmp_path / "secret.csv"), "/etc/hostname"):
            with pytest.raises((Fp8DebugError, duckdb.Error), match=r"Permission|disabled|not be"):
                run_query(opened, f"from read_text('{file}')").fetchall()
    assert not folder.exists(), "the copy is gone"


def test_damage_is_told_under_the_address_in_the_store(bucket: str) -> None:
    run = recorded(f"{bucket}/a")
    part = run.part_names("tensors")[0]
    run.storage.replace(part, run.storage.read(part)[:-20])
    with open_run(run.path) as opened:
        assert [problem.path for problem in opened.problems] == [f"{bucket}/a/{part}"]


def test_no_name_in_a_bucket_leads_out_of_the_copy(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(f"{bucket}/a")
    names = run.storage.names()
    evil = ["../rank=0/part-000000.parquet", "/etc/passwd", "steps/rank=0/../../x", "rank=0.json/x", "notes.txt"]
    copied: list[str] = []
    monkeypatch.setattr(run.storage, "names", lambda folder="": [*names, *evil])
    monkeypatch.setattr(run.storage, "fetch", lambda wanted, folder: copied.extend(wanted))
    LocalCopy(run).close()
    assert sorted(copied) == names


def test_parts_that_are_merged_meanwhile_are_copied_once_more(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(f"{bucket}/a")
    names = run.storage.names()
    gone = "tensors/rank=0/part-000009.parquet"
    listings = [[*names, gone], names]
    monkeypatch.setattr(run.storage, "names", lambda folder="": listings.pop(0) if listings else names)
    copy = LocalCopy(run)
    assert copy.run.part_names("tensors") == ["tensors/rank=0/part-000000.parquet"]
    copy.close()
    monkeypatch.setattr(run.storage, "names", lambda folder="": [*names, gone])
    with pytest.raises(Fp8DebugError, match="changes faster than it can be copied"):
        LocalCopy(run)


def test_who_resumes_waits_for_a_heartbeat(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(f"{bucket}/a")
    monkeypatch.setattr(place, "_LOOK_AGAIN_S", 0.0)
    lock, storage = run.lock_name(0), run.storage
    where = place.find_place(CaptureOptions(resume=str(run.path)), "train.py")
    where.check(force=False)
    storage.create(lock, b'{"machine": "another"}')
    answers = [True, True, False]
    monkeypatch.setattr(ObjectStorage, "is_held", lambda self, name: answers.pop(0))
    where.check(force=False)  # two looks without a heartbeat, then it has died
    assert answers == []

    def beat(self: ObjectStorage, name: str) -> bool:
        storage.replace(lock, b'{"machine": "another", "beats": 2}')
        return True

    monkeypatch.setattr(ObjectStorage, "is_held", beat)
    with pytest.raises(UsageError, match="is being written by another process; wait for its end"):
        where.check(force=False)


def test_latest_is_an_object_that_names_the_newest_run(bucket: str) -> None:
    for name in ("a", "b"):
        recorded(f"{bucket}/runs/{name}")
    folder = storage_of(f"{bucket}/runs")
    assert folder.read("latest") == b"b\n"
    assert find_run(f"{bucket}/runs/latest").read_manifest().run_id == "b"
    assert [Path(entry.path).name for entry in list_entries(ObjectPath(f"{bucket}/runs"))] == ["a", "b"]
    folder.replace("latest", b"somebody's notes")
    recorded(f"{bucket}/runs/c")
    assert folder.read("latest") == b"somebody's notes"


def test_what_cannot_be_done_in_a_bucket_is_refused(bucket: str) -> None:
    recorded(f"{bucket}/a")
    with pytest.raises(
        UsageError, match=r"a is not empty; two runs never mix in one directory: give another --out, or --resume"
    ):
        recorded(f"{bucket}/a")
    with pytest.raises(UsageError, match=r"--force renames an old run, which cannot be done in an object store"):
        recorded(f"{bucket}/a", force=True)
    with pytest.raises(UsageError, match=r"cannot be written to: .*bucket"):
        recorded("s3://no-such-bucket/a")
    with pytest.raises(UsageError, match=r"s4://: no file system of this kind is known.*nearest: s3"):
        RunDir("s4://bucket/a")
    with pytest.raises(UsageError, match=r"is in an object store; expected a directory of this machine"):
        _ = RunDir(f"{bucket}/a").folder


def watch_requests(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the threads that send requests from now on."""
    threads: set[str] = set()
    sync = fsspec.asyn.sync

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread().name)
        return sync(*args, **kwargs)

    monkeypatch.setattr(fsspec.asyn, "sync", noted)
    return threads


def test_control_reaches_a_capture_from_afar(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "FAR_S", 0.05)
    model, url = nn.Linear(8, 8), f"{bucket}/a"
    with fp8debug.attach(model, run_dir=url, every=50, detail="none", engine="torch", quiet=True) as session:
        threads = watch_requests(monkeypatch)
        train(session, model, 1)
        until(lambda: RunDir(url).exists())
        ask(url, {"every": 3}, raw_now=False)
        until(lambda: session._control._found is not None)
        own = threads - {threading.current_thread().name}
        threads.clear()
        train(session, model, 1)
        until(lambda: "fp8debug-writer" in threads)
        assert threads <= {"fp8debug-writer", "fp8debug-errands"}, "the training itself waits for no request"
    assert own == {"fp8debug-writer", "fp8debug-errands"}
    assert RunDir(url).storage.exists(CONTROL_NAME)
    assert RunDir(url).read_manifest().options["every"] == 3
    assert RunDir(url).read_ranks()[0].control["serial"] == 1


def test_a_store_out_of_reach_costs_the_run_alone(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fp8debug.storage.objects.RETRY_AFTER_S", (0.0,))
    monkeypatch.setattr("fp8debug.hooks.errands.LAST_S", 1.0)
    model = nn.Linear(8, 8)
    session = fp8debug.attach(model, run_dir=f"{bucket}/a", every=1, detail="none", engine="torch")

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no route to the store")

    with monkeypatch.context() as broken:
        broken.setattr(session.run_dir.storage.file_system, "pipe_file", refuse)  # type: ignore[attr-defined]
        train(session, model, 1)
        until(lambda: session._writer.error is not None)
        train(session, model, 1)
        session.close()
    assert len(re.findall(r"fp8debug: disabled at step 1.*no route to the store", capsys.readouterr().err)) == 1


def test_a_store_that_cannot_refuse_a_second_writer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://no-conditions/a"
    files = RunDir(url).storage.file_system  # type: ignore[attr-defined]
    put = files.pipe_file
    monkeypatch.setattr(files, "pipe_file", lambda path, content, mode="overwrite": put(path, content))
    with open_run(recorded(url).path) as opened:
        told = opened.sql("select message from events where kind = 'assumption'").fetchall()
    assert len(told) == 1
    assert "nobody else writes to memory://no-conditions/a: a second writer could not be refused" in told[0][0]


class FarStorage:
    """As much of a storage as errands need, in somebody else's house."""

    path = ObjectPath("s3://bucket/run")

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []
        self.open = threading.Event()

    def replace(self, name: str, content: bytes) -> None:
        self.open.wait(10)
        self.written.append((name, content))
        if content == b"bad":
            raise OSError("out of reach")


def test_errands_wait_for_nobody_and_the_last_word_counts() -> None:
    storage = FarStorage()
    errands = Errands(storage)  # type: ignore[arg-type]
    turns: list[int] = []
    errands.put("run.json", b"0")
    until(lambda: errands._thread is not None and not errands._documents)  # the thread is at it
    for content in (b"1", b"2", b"3"):
        errands.put("run.json", content)
    errands.put("rank=0.json", b"bad")
    errands.every(0.01, lambda: turns.append(len(turns)))
    assert storage.written == []
    storage.open.set()
    until(lambda: len(turns) > 2)
    errands.put("run.json", b"4")
    errands.close()
    assert storage.written == [("run.json", b"0"), ("run.json", b"3"), ("rank=0.json", b"bad"), ("run.json", b"4")]


def test_near_errands_are_done_at_once(tmp_path: Path) -> None:
    near: Storage = storage_of(tmp_path)
    errands = Errands(near)
    errands.put("run.json", b"{}")
    assert near.read("run.json") == b"{}"
    shutil.rmtree(tmp_path)
    with pytest.raises(OSError):
        errands.put("run.json", b"{}")
    assert errands._thread is None
