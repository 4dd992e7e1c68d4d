"""Launchers that a training is started with: their command lines, rewritten so that every rank runs under attach.

torchrun and accelerate are read with their own parsers; of srun and mpirun all that matters is where python begins.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

from fp8debug.errors import UsageError

ATTACH = ("fp8debug", "attach")
_LAUNCHED = "fp8debug.cli.launched"
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_PREFIXES = ("srun", "mpirun", "mpiexec", "orterun", "env", "nice", "nohup", "numactl", "taskset")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_ACCELERATE_MODULE = "accelerate.commands.launch"
_TAKES_A_WORD = ("-W", "-X", "--check-hash-based-pycs")
KNOWN = "torchrun, python -m torch.distributed.run, accelerate launch, srun, mpirun and python"


def is_launcher(word: str) -> bool:
    """Whether a command that begins with this word is read as a launcher's."""
    return not os.path.isdir(word) and (_begins_training(word) or os.path.basename(word) in _PREFIXES)


def is_launcher_module(name: str) -> bool:
    """Whether `python -m name` is a launcher."""
    return name in (*_TORCHRUN_MODULES, _ACCELERATE_MODULE)


def under_attach(words: Sequence[str]) -> list[str]:
    """The command with every rank's script run by `python -m fp8debug attach`.

    Raises:
        UsageError: a launcher that is not known, or a command in which the script cannot be found.
    """
    head = os.path.basename(words[0])
    if _PYTHON.fullmatch(head):
        return _python(words)
    if head == "torchrun":
        return [words[0], *_torchrun(words[1:])]
    if head == "accelerate-launch":
        return [words[0], *_accelerate(words[1:])]
    if head == "accelerate":
        if words[1:2] != ["launch"]:
            raise UsageError(f"accelerate {' '.join(words[1:2])} trains nothing; expected accelerate launch")
        return [*words[:2], *_accelerate(words[2:])]
    if head in _PREFIXES:
        return _behind(words)
    raise unknown(words[0])


def why_no_script(word: str) -> UsageError | None:
    """What to say of a word that is no launcher and no Python script either; None when it may be a script."""
    if os.path.isfile(word):
        with open(word, "rb") as file:
            start = file.readline(200)
        is_foreign = start.startswith(b"\x7fELF") or (start.startswith(b"#!") and b"python" not in start)
        return unknown(word) if is_foreign else None
    is_program = not os.path.exists(word) and not word.endswith(".py") and shutil.which(word) is not None
    return unknown(word) if is_program else None


def unknown(word: str) -> UsageError:
    """What to do by hand."""
    return UsageError(
        f"{word} is no launcher that is known ({KNOWN}); write it by hand: let each rank run `python -m fp8debug "
        "attach [options] train.py` where it would run `python train.py`, and set FP8DEBUG_RUN_DIR to one new "
        "directory for all of them"
    )


def script_of(command: Sequence[str]) -> str:
    """The script or module that a rewritten command runs in every rank."""
    pairs = list(pairwise(command))
    at = next(place for place, pair in enumerate(pairs) if pair == ATTACH or pair[0] == _LAUNCHED)
    rest = command[at + (1 if command[at] == _LAUNCHED else 2) :]
    return rest[1].rpartition(".")[2] if rest[0] == "-m" else rest[0]


def _begins_training(word: str) -> bool:
    name = os.path.basename(word)
    return name in ("torchrun", "accelerate", "accelerate-launch") or _PYTHON.fullmatch(name) is not None


def _behind(words: Sequence[str]) -> list[str]:
    start = next((at for at, word in enumerate(words) if at and _begins_training(word)), None)
    if start is None:
        raise UsageError(
            f"no python in `{' '.join(words)}`; expected something like {words[0]} ... python train.py: name the "
            "interpreter, or write it by hand: ... python -m fp8debug attach [options] train.py"
        )
    return [*words[:start], *under_attach(words[start:])]


def _python(words: Sequence[str]) -> list[str]:
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if re.fullmatch("-[A-Za-z]*m", words[at]) and at + 1 < len(words):
            flags = [words[at][:-1]] if len(words[at]) > 2 else []
            return [*words[:at], *flags, *_python_module(words[at + 1], words[at + 2 :])]
        if words[at] in ("-c", "-", "-m"):
            break
        at += 2 if words[at] in _TAKES_A_WORD else 1
    if at >= len(words) or words[at].startswith("-"):
        raise UsageError(f"no script in `{' '.join(words)}`; expected {words[0]} train.py, or {words[0]} -m module")
    return [*words[:at], "-m", *ATTACH, *words[at:]]


def _python_module(name: str, rest: Sequence[str]) -> list[str]:
    if name in _TORCHRUN_MODULES:
        return ["-m", name, *_torchrun(rest, is_old=name.endswith("launch"))]
    if name == _ACCELERATE_MODULE:
        return ["-m", name, *_accelerate(rest)]
    _refuse_twice(name)
    return ["-m", *ATTACH, "-m", name, *rest]


def _torchrun(words: Sequence[str], *, is_old: bool = False) -> list[str]:
    if is_old:  # it gives each script a --local-rank in front of its arguments, unless it is told --use-env
        from torch.distributed.launch import parse_args

        args = parse_args(list(words))
        runner: tuple[str, ...] = ATTACH if args.use_env else (_LAUNCHED,)
    else:
        from torch.distributed.run import get_args_parser

        args, runner = get_args_parser().parse_args(list(words)), ATTACH
    if args.run_path:
        raise UsageError("torchrun --run-path leaves no place for attach before the script; leave --run-path out")
    return _with_module(words, args, runner)


def _accelerate(words: Sequence[str]) -> list[str]:
    try:
        from accelerate.commands.launch import launch_command_parser
    except ImportError as error:
        raise UsageError(f"accelerate launch: {error}; expected accelerate to be installed beside fp8debug") from error
    parser: Callable[[], argparse.ArgumentParser] = launch_command_parser
    return _with_module(words, parser().parse_args(list(words)), ATTACH)


def _with_module(words: Sequence[str], args: argparse.Namespace, runner: Sequence[str]) -> list[str]:
    """A launcher's own options, and a module of ours for it to run in the place of the script."""
    tail = [args.training_script, *args.training_script_args]
    options = list(words[: len(words) - len(tail)])
    if list(words[len(options) :]) != tail:
        raise UsageError(
            f"cannot tell the launcher's options from the script's in `{' '.join(words)}`; write it by hand: "
            "... -m fp8debug attach [options] train.py"
        )
    if options[-1:] == ["--"]:
        options.pop()
    if args.no_python:
        return [*options, *under_attach(tail)]
    if args.module:
        _refuse_twice(tail[0])
        return [*options, *runner, "-m", *tail]
    return [*options, "--module", *runner, *tail]


def _refuse_twice(module: str) -> None:
    if module.partition(".")[0] == "fp8debug":
        raise UsageError(
            f"the command runs {module} already; expected the training's own command after --, or the command without "
            "`fp8debug attach --` before it"
        )


def of_module(name: str, arguments: Sequence[str]) -> list[str]:
    """The command of a launcher that was named as a module, as in `fp8debug attach -m torch.distributed.run`."""
    return under_attach([sys.executable, "-m", name, *arguments])
