"""The same answers from DuckDB at once, from partition after partition, and from a Ray cluster."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.engine import DuckDBEngine, Engine, engine_of, task
from fp8debug.analysis.engine.on_ray import RayEngine
from fp8debug.analysis.report import build_report
from fp8debug.analysis.whatif import whatif
from fp8debug.cli.main import main
from fp8debug.cli.render.json import report_json
from fp8debug.errors import Fp8DebugError, UsageError

SAMPLES = Path(__file__).resolve().parents[3] / "sample_dumps"
ALL_SAMPLED = "select segment, rank, seq from tensors where sampled"


def report_of(path: Path, engine: Engine | None) -> Any:
    with open_run(path, threads=1, engine=engine) as run:
        return json.loads(report_json(build_report(run)))


def assert_equal(got: Any, expected: Any, where: str = "") -> None:
    """Equal but for floats within 1e-12 of each other."""
    if isinstance(expected, float):
        assert math.isclose(got, expected, rel_tol=1e-12), where
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_equal(got[key], value, f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected), where
        for number, value in enumerate(expected):
            assert_equal(got[number], value, f"{where}[{number}]")
    else:
        assert got == expected, where


def counted(run: Run, condition: str = "true") -> list[tuple[Any, ...]]:
    """The reduction payload_counts of sampled records, as if they were codes."""
    con = run.prepare("tensors")
    con.execute(
        "create or replace temp table counts (segment int, rank int, seq bigint, n_largest int, n_subnormal int)"
    )
    run.reduce("payload_counts", f"select *, 'E2M1' as fmt from ({ALL_SAMPLED}) where {condition}", "counts")
    return con.execute("select * from counts order by rank, seq").fetchall()


def values_of(path: Path, rank: int, seq: int) -> Any:
    """Value and count, as two columns of float64."""
    files = sorted(path.glob(f"histograms/rank={rank}/*.parquet"))
    columns = pq.read_table(files, partitioning=None).to_pydict()
    own = np.array(columns["seq"]) == seq
    return np.array(columns["value"], np.float64)[own], np.array(columns["count"], np.float64)[own]


@pytest.mark.parametrize("n_partitions", [1, 3])
def test_reductions_are_what_numpy_says(several_ranks: Path, n_partitions: int) -> None:
    with open_run(several_ranks, threads=1, engine=DuckDBEngine(n_partitions)) as run:
        con = run.prepare("tensors")
        con.execute("create temp table moments (segment int, rank int, seq bigint, mean double, kurtosis double)")
        run.reduce("row_class_moments", ALL_SAMPLED, "moments")
        con.execute("create temp table counts (segment int, rank int, seq bigint, n_largest int, n_subnormal int)")
        run.reduce("payload_counts", f"select *, 'E2M1' as fmt from ({ALL_SAMPLED})", "counts")
        con.execute(
            "create temp table middles (segment int, rank int, seq bigint, recipe text, fmt text, channel_db double)"
        )
        run.reduce("median_channels", "select segment, rank, seq, recipe, fmt from stored.channels", "middles")
        rows = con.execute(
            """
            select rank, seq, mean, kurtosis, n_largest, n_subnormal, channel_db
            from moments join counts using (rank, seq) join middles using (rank, seq) order by seq
            """
        ).fetchall()
    assert len(rows) == 48
    for rank, seq, mean, kurtosis, n_largest, n_subnormal, channel_db in rows[::7]:
        x, c = values_of(several_ranks, rank, seq)
        centred = x - np.average(x, weights=c)
        assert mean == pytest.approx(np.average(x, weights=c), rel=1e-12)
        variance = np.average(centred**2, weights=c)
        assert kurtosis == pytest.approx(np.average(centred**4, weights=c) / variance**2, rel=1e-12)
        assert n_largest == c[abs(x) >= 6].sum()
        assert n_subnormal == c[(x != 0) & (abs(x) < 1)].sum()
        assert channel_db == 10  # half of the four channels are in bins up to this one


def test_records_of_many_ranks_that_straddle_row_groups_stay_whole(several_ranks: Path, tmp_path: Path) -> None:
    with open_run(several_ranks, threads=1) as run:
        expected = counted(run)
    copy = tmp_path / "run"
    shutil.copytree(several_ranks, copy)
    files = sorted((copy / "histograms").glob("*/*.parquet"))
    rows = pq.read_table(files, partitioning=None)
    for file in files:
        file.unlink()
    pq.write_table(rows.slice(0, len(rows) // 2), files[0], row_group_size=999)
    pq.write_table(rows.slice(len(rows) // 2), files[1], row_group_size=1001)
    with open_run(copy, threads=1, engine=DuckDBEngine(5)) as run:
        assert counted(run) == expected


def test_nothing_is_asked_of_no_record(several_ranks: Path) -> None:
    with open_run(several_ranks, threads=1, engine=DuckDBEngine(4)) as run:
        run.prepare("").execute("create temp table counts (segment int, rank int, seq bigint, a int, b int)")
        run.reduce(
            "payload_counts", "select 0 as segment, 0 as rank, 0::bigint as seq, 'E4M3' as fmt limit 0", "counts"
        )
        assert run.sql("select count(*) from counts").fetchall() == [(0,)]


@pytest.fixture(scope="session")
def at_once(several_ranks: Path) -> Any:
    """The report of the run by DuckDB alone."""
    return report_of(several_ranks, None)


def test_a_report_of_several_ranks_is_the_same_by_partitions(several_ranks: Path, at_once: Any) -> None:
    assert at_once["n_candidates"] == 1  # so that remedies are measured on histograms too
    assert_equal(report_of(several_ranks, DuckDBEngine(3)), at_once)


def test_a_report_of_several_ranks_is_the_same_by_ray(several_ranks: Path, at_once: Any, ray_engine: RayEngine) -> None:
    with open_run(several_ranks, threads=1) as run:
        (n_moved,) = run.sql("select count(*) from moved_sums").fetchall()[0]
    assert n_moved > 0  # records whose rank had another scale than the group
    assert_equal(report_of(several_ranks, ray_engine), at_once)


def test_a_report_of_a_sample_is_the_same_by_ray(ray_engine: RayEngine) -> None:
    path = SAMPLES / "gpt-outlier"
    assert_equal(report_of(path, ray_engine), report_of(path, None))


def test_a_whatif_is_the_same_by_ray(several_ranks: Path, ray_engine: RayEngine) -> None:
    with open_run(several_ranks, threads=1) as alone, open_run(several_ranks, threads=1, engine=ray_engine) as by_ray:
        ours, theirs = (whatif(run, ["current", "delayed:margin=2"]) for run in (alone, by_ray))
    assert theirs.n_histograms == ours.n_histograms > 0
    for got, expected in zip(theirs.operands, ours.operands, strict=True):
        assert (got.n, got.n_underflow, got.n_overflow) == (expected.n, expected.n_underflow, expected.n_overflow)
        assert (got.sum_err2, got.sum_xq) == pytest.approx((expected.sum_err2, expected.sum_xq), rel=1e-12)


def test_a_file_that_a_worker_does_not_see_is_named(several_ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: "rank=2" not in path)
    with (
        open_run(several_ranks, threads=1, engine=DuckDBEngine(2)) as run,
        pytest.raises(Fp8DebugError, match=r"does not see .*rank=2.*must see the run"),
    ):
        counted(run)


def test_a_worker_that_does_not_see_the_copy_of_a_bucket_fetches_its_files(
    several_ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(several_ranks, threads=1) as run:
        expected = counted(run)
    seen = os.path.exists
    with open_run(several_ranks, threads=1, engine=DuckDBEngine(2)) as run:
        monkeypatch.setattr(run, "_source", replace(run._source, store=(str(several_ranks), f"file://{several_ranks}")))
        monkeypatch.setattr(os.path, "exists", lambda path: str(several_ranks) not in str(path) and seen(path))
        assert counted(run) == expected


def test_what_goes_wrong_in_a_worker_is_told(several_ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_share", lambda config, n_threads: {**config, "memory_limit": "nonsense"})
    monkeypatch.setattr("fp8debug.analysis.engine.task.answer", partial(task.answer, n_threads=1))
    with (
        open_run(several_ranks, threads=1, engine=DuckDBEngine(2)) as run,
        pytest.raises(Fp8DebugError, match=r"a partition could not be computed on .+: .*[mM]emory"),
    ):
        counted(run)


def dying(marker: Path) -> Callable[..., task.Answer]:
    """`answer` in a process that dies, once if there is a marker to leave."""
    real = task.answer

    def answer(*args: Any, **kwargs: Any) -> task.Answer:
        if not marker.exists():
            if marker.parent.exists():
                marker.touch()
            os._exit(9)
        found = real(*args, **kwargs)
        if "fp8debug" in sys.modules:  # what runs on the cluster must do without it
            os._exit(8)
        return found

    return answer


def test_a_worker_that_dies_is_replaced_once(
    several_ranks: Path, tmp_path: Path, ray_engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(several_ranks, threads=1) as run:
        expected = counted(run)
    with open_run(several_ranks, threads=1, engine=ray_engine) as run:
        monkeypatch.setattr(task, "answer", dying(tmp_path / "died"))
        assert counted(run) == expected
        assert (tmp_path / "died").exists()
        monkeypatch.setattr(task, "answer", dying(tmp_path / "nowhere" / "died"))
        with pytest.raises(Fp8DebugError, match=r"lost a partition, after 1 retries: .+"):
            counted(run, "rank = 0")


def test_engines_are_named() -> None:
    assert isinstance(engine_of("duckdb"), DuckDBEngine)
    with pytest.raises(UsageError, match="unknown engine 'rai'; expected duckdb, ray or ray:ADDRESS; did you mean ray"):
        engine_of("rai")
    with pytest.raises(UsageError, match="address behind the colon"):
        engine_of("ray:")


def test_ray_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'fp8debug\[ray\]'"):
        engine_of("ray")


@contextmanager
def listening(reply: bytes) -> Iterator[int]:
    """A port that answers with `reply`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_an_address_without_a_cluster_is_refused_at_once(
    several_ranks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed_port = server.getsockname()[1]
    assert main(["report", str(several_ranks), "--engine", f"ray:127.0.0.1:{closed_port}"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"no Ray cluster at '127.0.0.1:{closed_port}'" in err
    with listening(b"HTTP/1.1 400 Bad Request\r\n") as port, pytest.raises(UsageError, match="something else listens"):
        open_run(several_ranks, engine=f"ray:127.0.0.1:{port}")
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        open_run(several_ranks, engine="ray:somewhere")
