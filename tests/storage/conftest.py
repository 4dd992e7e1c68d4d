from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8debug.storage import Storage, file_systems, storage_of

BUCKET = "bucket"
_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[dict[str, str]]:
    """What a process needs in its environment to reach an S3 server of this session, which has one bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", _free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    yield environment
    file_systems.file_system.cache_clear()
    server.stop()


@pytest.fixture
def bucket(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty prefix in a bucket that this process can reach."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    files = file_systems.file_system("s3", os.getpid())
    if not files.exists(BUCKET):
        files.mkdir(BUCKET)
    return f"s3://{BUCKET}/test{next(_NUMBERS)}"


@pytest.fixture(params=["folder", "s3", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of each kind."""
    if request.param == "folder":
        return storage_of(tmp_path)
    if request.param == "memory":
        return storage_of(f"memory://test{next(_NUMBERS)}/run")
    return storage_of(f"{request.getfixturevalue('bucket')}/run")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
