"""Launchers' command lines, rewritten so that every rank runs under attach; options on their way to other processes."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from fp8debug.cli import launched, launcher
from fp8debug.cli.main import main
from fp8debug.errors import UsageError
from fp8debug.settings import as_environment, load_options

ATTACH = "--module fp8debug attach"
COMMANDS = """
torchrun --nproc-per-node 2 train.py --lr 1
  torchrun --nproc-per-node 2 --module fp8debug attach train.py --lr 1
/v/bin/torchrun --nnodes=2 --rdzv-id j -- train.py -x --
  /v/bin/torchrun --nnodes=2 --rdzv-id j --module fp8debug attach train.py -x --
torchrun --nproc-per-node 2 -m pkg.train --lr 1
  torchrun --nproc-per-node 2 -m fp8debug attach -m pkg.train --lr 1
torchrun --no-python python -u train.py
  torchrun --no-python python -u -m fp8debug attach train.py
python3.11 -u -m torch.distributed.run --standalone t.py
  python3.11 -u -m torch.distributed.run --standalone --module fp8debug attach t.py
python -m torch.distributed.launch --use-env t.py
  python -m torch.distributed.launch --use-env --module fp8debug attach t.py
python -m torch.distributed.launch t.py a
  python -m torch.distributed.launch --module fp8debug.cli.launched t.py a
accelerate launch --num_processes 2 t.py --cpu
  accelerate launch --num_processes 2 --module fp8debug attach t.py --cpu
accelerate launch --module pkg.t 1
  accelerate launch --module fp8debug attach -m pkg.t 1
accelerate launch --no_python python t.py
  accelerate launch --no_python python -m fp8debug attach t.py
python -m accelerate.commands.launch t.py
  python -m accelerate.commands.launch --module fp8debug attach t.py
srun -n 4 --label python -X dev -W error train.py 3
  srun -n 4 --label python -X dev -W error -m fp8debug attach train.py 3
srun torchrun --nnodes 2 train.py
  srun torchrun --nnodes 2 --module fp8debug attach train.py
mpirun -np 2 -x A python -m pkg.train
  mpirun -np 2 -x A python -m fp8debug attach -m pkg.train
python -um pkg.train 1
  python -u -m fp8debug attach -m pkg.train 1
env A=1 nice python train.py
  env A=1 nice python -m fp8debug attach train.py
"""
REWRITTEN = dict(zip(*(iter(COMMANDS.strip().splitlines()),) * 2, strict=True))


@pytest.mark.parametrize("command", REWRITTEN)
def test_rewritten(command: str) -> None:
    words = launcher.under_attach(command.split())
    assert " ".join(words) == REWRITTEN[command].strip()
    assert launcher.is_launcher(command.split()[0])
    assert launcher.script_of(words) in ("train.py", "t.py", "train", "t")


def test_a_launcher_that_is_named_as_a_module() -> None:
    words = launcher.of_module("torch.distributed.run", ["--standalone", "t.py"])
    assert words == [sys.executable, *f"-m torch.distributed.run --standalone {ATTACH} t.py".split()]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("deepspeed --num_gpus 2 train.py", "deepspeed is no launcher that is .*by hand: .*python -m fp8debug attach"),
        ("torchrun --run-path train.py", "leave --run-path out"),
        ("torchrun --no-python ./run.sh", r"\./run\.sh is no launcher"),
        ("torchrun -m fp8debug attach train.py", "runs fp8debug already"),
        ("python -m fp8debug attach train.py", "runs fp8debug already"),
        ("python -c pass", "no script in `python -c pass`"),
        ("python -u", "no script in"),
        ("srun -n 2 ./train", "no python in `srun -n 2 ./train`"),
        ("accelerate config", "expected accelerate launch"),
    ],
)  # fmt: skip
def test_refused(command: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        launcher.under_attach(command.split())


def test_words_that_are_no_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "run.sh": "#!/bin/bash\n",
        "tool": "#!/usr/bin/env python3\n",
        "train.py": "import torch\n",
    }.items():
        Path(name).write_text(text)
    Path("python").mkdir()
    assert launcher.why_no_script("run.sh") is not None
    assert launcher.why_no_script("sh") is not None
    assert [launcher.why_no_script(word) for word in ("tool", "train.py", "nowhere.py", "nowhere")] == [None] * 4
    assert not launcher.is_launcher("python"), "a folder with a __main__.py"
    assert not launcher.is_launcher("train.py")


@pytest.mark.parametrize("words", [["-m", "run.sh"], ["deepspeed.sh"]])
def test_an_unknown_launcher_ends_with_usage(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deepspeed.sh").write_text("#!/bin/sh\n")
    assert main(["attach", "--", words[-1]] if len(words) == 1 else ["attach", *words]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_the_old_launcher_puts_the_local_rank_before_the_script() -> None:
    assert launched.arguments(["--local-rank=1", "t.py", "-x"]) == ["attach", "t.py", "--local-rank=1", "-x"]
    assert launched.arguments(["--local-rank=0", "-m", "pkg.t", "a"]) == [
        "attach",
        "-m",
        "pkg.t",
        "--local-rank=0",
        "a",
    ]
    assert launched.arguments(["t.py"]) == ["attach", "t.py"]


def test_every_option_survives_the_way_to_the_ranks(tmp_path: Path) -> None:
    """As the command line gives them: texts, lists, numbers, flags."""
    given: dict[str, Any] = {
        "layers": [r"a b|\[0\]", "[0-9]+", '"quoted", é'],
        "exclude": ["[ab]"],
        "tensors": "weight,grad_output m",
        "every": 7,
        "first": 3,
        "steps": "0-9,100,200-",
        "raw_every": 11,
        "recipes": ["delayed:amax_history_len=16,margin=1", "current"],
        "rolls": "step",
        "engine": "torch",
        "backend": "dispatch",
        "attention": True,
        "inference": True,
        "trigger": "nan,amax>16x",
        "flight_memory": 9,
        "detail": "none",
        "accumulation": "exact hopper-fast",
        "probe_memory": 5,
        "on_full": "drop",
        "max_bytes": "3M",
        "plan": "the plan.toml",
        "seed": 3,
        "emulate": "delayed:margin=1",
        "keep_bf16": ["^lm head$"],
        "emulate_only": "dy,wgrad",
        "out": "a b/run",
        "name": "lr 3e-4",
        "force": True,
        "resume": "old run",
        "resume_step": 40,
        "list_layers": True,
        "quiet": True,
    }
    config = tmp_path / "c.toml"
    config.write_text("every = 3\nfirst = 2\n")
    here = load_options(given, config_file=str(config), environment={})
    there = load_options({}, environment=as_environment(given, str(config)))
    assert {field.name for field in dataclasses.fields(here) if field.compare} == set(given), "every option is here"
    assert there == here
    assert as_environment({"every": None, "layers": []}) == {}
    assert load_options({}, environment={"FP8DEBUG_LAYERS": "[0-9]"}).layers == ("[0-9]",)
