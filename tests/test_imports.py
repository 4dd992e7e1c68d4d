"""What an import costs: the root and the command line load nothing heavy, and help comes at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import fp8debug

HEAVY = ("torch", "duckdb", "pyarrow", "numpy", "numba", "rich")
HELP_CPU_S = 0.3


def loaded(code: str, modules: tuple[str, ...] = HEAVY) -> set[str]:
    """Which of `modules` a fresh interpreter has imported after running `code`."""
    tell = f"{code}\nimport sys\nprint(*[m for m in {modules!r} if m in sys.modules], file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


def cpu_s(*arguments: str, enough: float, tries: int = 10) -> float:
    """User and system time of `python <arguments>`, s: the least of several runs, as neighbours only ever add."""
    best = float("inf")
    for _ in range(tries):
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        best = min(best, usage.ru_utime + usage.ru_stime)
        if best < enough:
            break
    return best


@pytest.mark.parametrize(
    "code",
    [
        "import fp8debug",
        "import fp8debug.cli",
        "import fp8debug.cli.main",
        "import fp8debug.settings",
        "from fp8debug.cli.main import main; assert main(['--help']) == 0",
        "from fp8debug.cli.main import main; assert main(['attach', '--help']) == 0",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert loaded(code) == set()


def test_the_check_can_fail() -> None:
    assert loaded("import numpy") == {"numpy"}


def test_help_is_quick() -> None:
    assert cpu_s("-m", "fp8debug", "--help", enough=HELP_CPU_S) < HELP_CPU_S


def test_the_clock_can_fail() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    assert cpu_s("-c", burn, enough=HELP_CPU_S, tries=1) >= 0.4 > HELP_CPU_S


def test_public_names() -> None:
    assert set(fp8debug.__all__) <= set(dir(fp8debug))
    with pytest.raises(AttributeError, match="no attribute 'attahc'"):
        getattr(fp8debug, "attahc")  # noqa: B009


def test_public_names_are_found_where_they_live() -> None:
    from fp8debug.analysis import open_run
    from fp8debug.hooks.entry import attach

    assert (fp8debug.open_run, fp8debug.attach) == (open_run, attach)
