"""The command line with capture replaced by a stand-in that needs no torch and writes down what it is told.

Environment: FAKE_LOG, a file that gets one JSON list a call; FAKE_RECORDS, how many tensors were "recorded" (absent:
no model ran); FAKE_PROBLEM, a problem to report; FAKE_SAY, a line to say at the start; FAKE_FAIL, `start:usage`,
`start:bug` or `close:bug`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

from fp8debug.cli.main import main
from fp8debug.config import CaptureOptions
from fp8debug.errors import UsageError


@dataclasses.dataclass
class Summary:
    run_path: Path
    n_records: int
    n_steps: int
    is_complete: bool
    problems: list[str]


class StopBeforeTraining(BaseException):
    def __init__(self, exit_code: int, message: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


class AutoAttach:
    def __init__(
        self, options: CaptureOptions, *, command: Sequence[str], script: str, say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._say = say
        _log("init", {"options": dataclasses.asdict(options), "command": list(command), "script": script})

        self.rank = int(os.environ.get("RANK", "0"))

    def start(self) -> None:
        _log("start")
        _fail("start")
        if "FAKE_SAY" in os.environ:
            self._say(os.environ["FAKE_SAY"])

    def close(self, status: str, reason: str | None) -> Summary | None:
        _log("close", status, reason)
        _fail("close")
        if "FAKE_RECORDS" not in os.environ:
            return None
        problems = [os.environ["FAKE_PROBLEM"]] if "FAKE_PROBLEM" in os.environ else []
        return Summary(Path("runs/my run"), int(os.environ["FAKE_RECORDS"]), 40, True, problems)


def _log(*call: object) -> None:
    if "FAKE_LOG" in os.environ:
        with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as file:
            file.write(json.dumps(call) + "\n")


def _fail(where: str) -> None:
    place, _, how = os.environ.get("FAKE_FAIL", "").partition(":")
    if place == where:
        raise UsageError("the options cannot be met") if how == "usage" else ZeroDivisionError("a bug")


if __name__ == "__main__":
    stand_in = types.ModuleType("fp8debug.hooks.autoattach")
    stand_in.AutoAttach = AutoAttach  # type: ignore[attr-defined]
    stand_in.StopBeforeTraining = StopBeforeTraining  # type: ignore[attr-defined]
    sys.modules["fp8debug.hooks.autoattach"] = stand_in
    sys.exit(main())
