"""Connecting to a Ray cluster, or starting one on this machine: quietly, and within a bounded time."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import socket
from collections.abc import Iterator
from typing import Any

from fp8debug.errors import Fp8DebugError, UsageError

_TIMEOUT_S = 5.0
# What every gRPC server, so every head of a Ray cluster, answers with a SETTINGS frame: type 4 in the fourth byte.
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_task_oom_retries": "2",  # without a limit it would try for ever
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class Cluster:
    """A connection of this process to a cluster.

    Args:
        address: as `ray.init` takes it; None: start a cluster here.
        n_cores: of a cluster that is started here; None: all of this machine.

    Raises:
        UsageError: ray is not installed, or there is no cluster at the address.
        Fp8DebugError: a cluster could not be started here.
    """

    def __init__(self, address: str | None, n_cores: int | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                "the engine ray needs the package ray, which is not installed: pip install 'fp8debug[ray]'"
            )
        self.ray: Any = importlib.import_module("ray")
        # In a process that is connected already, as one that Ray itself started, that connection is used and kept.
        self._is_ours = not self.ray.is_initialized()
        if self._is_ours:
            _connect(self.ray, address, n_cores or os.cpu_count())

    @property
    def n_cores(self) -> int:
        """Cores of all its machines.

        Raises:
            Fp8DebugError: it has none, so that a task would wait for ever.
        """
        n = int(self.ray.cluster_resources().get("CPU", 0))
        if n < 1:
            raise Fp8DebugError("the Ray cluster has no core to compute on: it was started with --num-cpus 0 alone")
        return n

    def close(self) -> None:
        """Disconnect, and stop the cluster if it was started here; safe to call twice."""
        if self._is_ours:
            self._is_ours = False
            self.ray.shutdown()


def _connect(ray: Any, address: str | None, n_cores: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    with _environment():
        if address is None:
            try:
                ray.init(address="local", num_cpus=n_cores, include_dashboard=False, **quiet)
            except (OSError, RuntimeError, ValueError) as error:
                raise Fp8DebugError(f"Ray could not start a cluster on this machine: {_reason(error)}") from error
            return
        if address != "auto":
            _probe(address)
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
            raise UsageError(f"no connection to a Ray cluster at {address!r}: {_reason(error)}") from error


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _probe(address: str) -> None:
    """Ask whether a server like Ray's listens there: Ray itself takes minutes to see that none does."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise UsageError(f"Ray address {address!r}: expected HOST:PORT, ray://HOST:PORT or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S) as connection:
            if os.environ.get("RAY_USE_TLS") == "1":
                return
            connection.settimeout(_TIMEOUT_S)
            connection.sendall(_HTTP2_GREETING)
            greeting = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster at {address!r}: {error}; is it running, and is the port open?") from error
    if len(greeting) < 4 or greeting[3] != _SETTINGS_FRAME:
        raise UsageError(f"no Ray cluster at {address!r}: something else listens there")


def _reason(error: BaseException) -> str:
    """The most telling line: what went wrong first, where Ray says."""
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    telling = [line for line in lines if "Error: " in line]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0]
