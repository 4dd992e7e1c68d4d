"""Ten thousand wrong inputs: each must give an answer or a clear error, never a traceback, and must end.

    python benchmarks/fuzz.py [--inputs 10000] [--seed 0] [--kind NAME] [--only NUMBER] [--check]
                              [--markdown docs/faults.md]

Real Parquet parts, manifests, control files, configurations, rules, plans, loss curves and SQL are damaged and given to
the command line in this process. What fails is printed with its kind and number, and `--kind NAME --only NUMBER` with
the same seed runs it alone. `--check` exits 1 where anything fails.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_inputs import KINDS, Command, Samples, make_samples
from pages import machine, replace_section

from fp8debug.cli.exit_codes import ExitCode
from fp8debug.cli.main import main as fp8debug_main
from fp8debug.cli.render.stream import tell
from fp8debug.errors import Fp8DebugError

SLOW_S = 3.0
"""Longer than this is worth a look: its number is printed."""
LIMIT_S = 30.0
"""Longest that one input may take; a report of the same run takes a quarter of a second."""
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_DATA_FORMATS = {"csv", "json", "jsonl", "parquet"}


class Hang(BaseException):
    """An input took longer than the limit."""


@dataclass(frozen=True)
class Outcome:
    """What became of one input."""

    word: str
    """answered | refused | or a fault: traceback | hang | silent | control characters | wrote | died"""
    seconds: float = 0.0
    detail: str = ""

    @property
    def is_fault(self) -> bool:
        return self.word not in ("answered", "refused")


@dataclass
class Tally:
    """All inputs of one kind."""

    words: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.words[outcome.word] += 1
        self.slowest_s = max(self.slowest_s, outcome.seconds)

    @property
    def n_faults(self) -> int:
        return sum(n for word, n in self.words.items() if word not in ("answered", "refused"))


def run_input(kind: str, number: int, seed: int, samples: Samples, *, keep: Path | None = None) -> Outcome:
    """Make input `number` of a kind and give it to the commands that read it; the first fault counts."""
    rng = random.Random(f"{seed} {kind} {number}")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-")) if keep is None else keep
    try:
        commands = KINDS[kind][0](rng, samples, folder)
        outcomes = []
        for command in commands:
            if keep is not None:
                print(f"{command}")
            outcomes.append(run_command(command))
        slowest = max(outcome.seconds for outcome in outcomes)
        worst = next((o for o in outcomes if o.is_fault), outcomes[0])
        if files := samples.written():
            return Outcome("wrote", slowest, f"{commands}: {files}")
        return Outcome(worst.word, slowest, worst.detail)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def run_command(command: Command) -> Outcome:
    """Run one command in this process, its output captured."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    began = time.monotonic()
    try:
        with _limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _call(command)
    except Hang:
        return Outcome("hang", time.monotonic() - began, f"{command}")
    except BaseException:
        if time.monotonic() - began >= LIMIT_S:  # DuckDB has an error of its own for an alarm
            return Outcome("hang", time.monotonic() - began, f"{command}\n{traceback.format_exc()}")
        return Outcome("traceback", time.monotonic() - began, f"{command}\n{traceback.format_exc()}")
    seconds = time.monotonic() - began
    out.flush()
    told, data = err.getvalue(), out.buffer.getvalue()
    if code not in (ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE, ExitCode.FAIL_ON):
        return Outcome("traceback", seconds, f"{command}: exit code {code}")
    if code in (ExitCode.FAILED, ExitCode.USAGE) and not told.strip() and not data:
        return Outcome("silent", seconds, f"{command}: exit code {code} without a word")
    is_data = not callable(command) and _DATA_FORMATS & set(command)
    if found := _CONTROLS.search(told) or (None if is_data else _CONTROLS.search(data.decode("utf-8", "replace"))):
        return Outcome("control characters", seconds, f"{command}: {found[0]!r} in what is printed")
    return Outcome("answered" if code in (ExitCode.DONE, ExitCode.FAIL_ON) else "refused", seconds, told)


def _call(command: Command) -> int:
    if not callable(command):
        return fp8debug_main(command)
    try:
        command()
    except Fp8DebugError as error:
        tell(str(error))
        return error.exit_code
    return ExitCode.DONE


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def ring(signum: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Many of them ---------------------------------------------------------------------------------------------------------


def work(kind: str, first: int, last: int, seed: int) -> None:
    """Run inputs first..last-1 of a kind, one line of the outcome each."""
    with tempfile.TemporaryDirectory() as place:
        samples = make_samples(Path(place))
        for number in range(first, last):
            faulthandler.dump_traceback_later(2 * LIMIT_S, exit=True)  # where even the alarm does not get through
            outcome = run_input(kind, number, seed, samples)
            detail = outcome.detail if outcome.is_fault else f"{outcome.seconds:.1f} s"
            print(f"{outcome.word}\t{outcome.seconds:.3f}\t{detail!r}", flush=True)


def outcomes(kind: str, n: int, seed: int) -> Iterator[tuple[int, Outcome]]:
    """Those of `n` inputs of a kind, run in another process; where an input ends it, the next is run in a new one."""
    done = 0
    while done < n:
        arguments = [sys.executable, __file__, "--worker", kind, str(done), str(n), "--seed", str(seed)]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        ) as ran:
            assert ran.stdout is not None
            for line in ran.stdout:
                word, seconds, detail = line.rstrip("\n").split("\t", 2)
                yield done, Outcome(word, float(seconds), detail)
                done += 1
        if done < n:
            yield done, Outcome("died", 0.0, f"the process ended with {ran.returncode}")
            done += 1


def measure(n: int, seed: int, kinds: list[str]) -> dict[str, Tally]:
    """Run them all; faults are printed as they come."""
    tallies = {}
    for kind in kinds:
        tally = tallies[kind] = Tally()
        for number, outcome in outcomes(kind, round(n * KINDS[kind][1]), seed):
            tally.add(outcome)
            if outcome.is_fault or outcome.seconds > SLOW_S:
                text = outcome.detail.encode().decode("unicode_escape", "replace")
                print(f"-- {kind} {number}: {outcome.word}\n{text}", file=sys.stderr, flush=True)
    return tallies


def table(tallies: dict[str, Tally]) -> list[str]:
    """Markdown."""
    lines = [
        "| input | n | answered | refused | tracebacks | hangs, deaths | other faults | slowest, s |",
        "|---" * 8 + "|",
    ]
    for kind, tally in tallies.items():
        w = tally.words
        other = tally.n_faults - w["traceback"] - w["hang"] - w["died"]
        cells = (kind, w.total(), w["answered"], w["refused"], w["traceback"], w["hang"] + w["died"], other)
        lines.append(f"| {' | '.join(map(str, cells))} | {tally.slowest_s:.1f} |")
    return lines


def main() -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), help="this kind alone")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this input alone, kept, with what it gives")
    parser.add_argument("--check", action="store_true", help="exit 1 where anything fails")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="replace the table in this page")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        kind, first, last = arguments.worker
        work(kind, int(first), int(last), arguments.seed)
        return 0
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    if arguments.only is not None:
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        samples = make_samples(Path(tempfile.mkdtemp()))
        outcome = run_input(kinds[0], arguments.only, arguments.seed, samples, keep=folder)
        print(f"{folder}: {outcome.word} in {outcome.seconds:.2f} s\n{outcome.detail}")
        return int(outcome.is_fault)
    tallies = measure(arguments.inputs, arguments.seed, kinds)
    lines = [f"{machine()}; seed {arguments.seed}", "", *table(tallies)]
    print("\n".join(lines))
    if arguments.markdown:
        replace_section(arguments.markdown, "fuzz", lines)
    return int(arguments.check and any(tally.n_faults for tally in tallies.values()))


if __name__ == "__main__":
    raise SystemExit(main())
