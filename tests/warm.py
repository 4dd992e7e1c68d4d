"""Python processes that have imported what takes seconds: one process imports it and forks itself for each request.

    python tests/warm.py MODULE …

A request is one line of JSON on standard input: `arguments` as after `python` on a command line (a script, or `-m` and
`fp8debug`), `folder`, `environment`, and the files that standard output and error go to. The answer is the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import warnings
from typing import Any


def serve() -> dict[str, Any] | None:
    """Answer requests until there are no more; returns the request itself in the process that is to meet it."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            request: dict[str, Any] = json.loads(line)
            return request
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Be the process that was asked for."""
    for number, name in enumerate((os.devnull, request["stdout"], request["stderr"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sys.argv[1:]:
            importlib.import_module(name)
    found = serve()
    if found is not None:
        become(found)
