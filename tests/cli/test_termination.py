"""Signals: what was recorded is saved, and then the process ends as it would have ended without us."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from fp8debug.cli import termination
from fp8debug.cli.termination import saving_on_sigterm

if TYPE_CHECKING:
    from tests.cli.conftest import Place

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
STRIKES = """
import os, signal, time

def train():
    os.kill(os.getpid(), signal.{})
    time.sleep(60)

train()
"""
SIGNALS = pytest.mark.parametrize(
    ("sent", "reason"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "SIGTERM")], ids=["INT", "TERM"]
)


@SIGNALS
def test_process_dies_of_the_signal_as_under_python(place: Place, sent: signal.Signals, reason: str) -> None:
    place.write("program.py", STRIKES.format(sent.name))
    ran = place.attach("program.py")
    assert ran == place.python("program.py")
    assert ran.code == -sent
    assert place.calls()[-1] == ["close", "interrupted", reason]


@SIGNALS
def test_signal_from_outside_ends_a_waiting_program(place: Place, sent: signal.Signals, reason: str) -> None:
    place.write("program.py", WAITS)
    assert place.attach("program.py", stop_with=sent).code == -sent
    assert place.calls()[-1] == ["close", "interrupted", reason]


def test_last_lines_stand_below_the_traceback(place: Place) -> None:
    place.write("program.py", STRIKES.format("SIGINT"))
    ran = place.attach("program.py", quiet=False, FAKE_RECORDS="2")
    assert ran.err.index(b"KeyboardInterrupt") < ran.err.index(b"recorded 2 tensors")
    assert ran.err.endswith(b"next: fp8debug report 'runs/my run'\n")


def test_sigterm_says_where_the_run_is(place: Place) -> None:
    place.write("program.py", STRIKES.format("SIGTERM"))
    ran = place.attach("program.py", quiet=False, FAKE_RECORDS="2")
    assert ran.code == -signal.SIGTERM
    assert b"recorded 2 tensors in 40 steps: runs/my run" in ran.err


HANDLER = """
import signal, sys, time

def handler(number, frame):
    print("mine", flush=True)
    sys.exit(4)

signal.signal(signal.SIGTERM, handler)
print("ready", flush=True)
time.sleep(60)
"""


def test_the_programs_own_handler_wins(place: Place) -> None:
    place.write("program.py", HANDLER)
    ran = place.attach("program.py", stop_with=signal.SIGTERM)
    assert ran == place.python("program.py", stop_with=signal.SIGTERM)
    assert (ran.code, ran.out) == (4, b"ready\nmine\n")
    assert place.calls()[-1] == ["close", "failed", "exit code 4"]


def test_ignored_sigterm_stays_ignored(place: Place) -> None:
    place.write("program.py", "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)")
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # handed down to the child
    try:
        ran = place.attach("program.py")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ran.out == b"True\n"


FORKS = """
import os, signal, time

child = os.fork()
if child == 0:
    time.sleep(60)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_child_dies_of_sigterm_and_touches_nothing(place: Place) -> None:
    place.write("program.py", FORKS)
    assert place.attach("program.py").out == b"-15\n"
    assert [call for call in place.calls() if call[0] == "close"] == [["close", "closed", None]]


@pytest.fixture
def received() -> Iterator[list[int]]:
    """A handler that was there before, as another tool would have installed it."""
    numbers: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    yield numbers
    signal.signal(signal.SIGTERM, before)


def test_earlier_handler_is_called_after_saving(received: list[int]) -> None:
    order: list[str] = []
    earlier = signal.getsignal(signal.SIGTERM)
    with saving_on_sigterm(lambda: order.append(f"saved after {len(received)}")):
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is earlier
    assert (order, received) == (["saved after 0"], [signal.SIGTERM])


def test_handler_of_the_block_is_kept_and_ours_is_taken_back(received: list[int]) -> None:
    earlier = signal.getsignal(signal.SIGTERM)
    with saving_on_sigterm(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is not earlier
    assert signal.getsignal(signal.SIGTERM) is earlier
    with saving_on_sigterm(lambda: None):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_lock_held_by_the_interrupted_code_delays_but_does_not_block(
    received: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "GRACE_S", 0.1)
    lock = threading.Lock()

    def save() -> None:
        with lock:
            pass

    with saving_on_sigterm(save), lock:
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
