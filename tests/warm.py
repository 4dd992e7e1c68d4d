"""Python processes that have imported what takes seconds: one process imports it and forks itself for each request.

    python tests/warm.py SOCKET MODULE …

Test workers share it over a Unix socket. A connection sends one line of JSON. With `arguments` as after `python` on a
command line (a script, or `-m` and `fp8debug`), `folder`, `environment` and the files that standard output and error go
to, it asks for a process, and the answer is the exit code. With `stay` it asks for nothing: the server ends once none
of those is open. Without either it asks whether the server is there.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


def prepare(modules: Sequence[str]) -> None:
    """Import them for good: a process that ends need not look through all that it has from us, which takes a second."""
    sys.modules["triton"] = None  # type: ignore[assignment]  # as where torch is for CPUs; it tells what is not freed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def serve(listener: socket.socket) -> dict[str, Any] | None:
    """Answer requests while a test worker is there; returns the request itself in the process that is to meet it."""
    staying: list[socket.socket] = []
    has_started = False
    while staying or not has_started:
        ready, _, _ = select.select([listener, *staying], [], [], 1.0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        for gone in [one for one in staying if one in ready]:
            staying.remove(gone)
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        request: dict[str, Any] = json.loads(connection.makefile("r").readline())
        if "stay" in request:
            staying.append(connection)
            has_started = True
        elif "arguments" not in request:
            connection.close()  # somebody who wants to know whether we are there
        elif os.fork() == 0:
            for other in (listener, *staying):
                other.close()
            return request if is_program(connection) else None
        else:
            connection.close()
    return None


def is_program(connection: socket.socket) -> bool:
    """Fork once more: True in the program, False in the process that has waited for it and told its exit code."""
    pid = os.fork()
    if pid == 0:
        connection.close()
        return True
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):  # nobody waits any more
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return False


def become(request: dict[str, Any]) -> None:
    """Be the process that was asked for."""
    for number, name in enumerate((os.devnull, request["stdout"], request["stderr"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    sys.path[1:1] = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
    script, *arguments = request["arguments"]
    if script == "-m":
        module, *arguments = arguments
        assert module == "fp8debug"
        from fp8debug.cli.main import main

        sys.argv = ["fp8debug", *arguments]
        sys.exit(main())
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    address, *modules = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(address)
        bound.listen(64)  # before the imports: whoever asks meanwhile waits
        prepare(modules)
        found = serve(bound)
    if found is not None:
        become(found)
