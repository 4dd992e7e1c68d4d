"""Each example runs as its docstring says, with fewer steps, and leaves a run that can be reported on."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from fp8debug.analysis import open_run
from fp8debug.rundir import find_run

EXAMPLES = {
    "hf_trainer.py": ("--steps 1 --seq 16", 21),  # q, k, v, o, gate, up, down of three of its blocks
    "lightning_gpt.py": ("--steps 2", 17),
    "ddp_gpt.py": ("--steps 2", 17),
    "torchao_gpt.py": ("--steps 2", 17),
}


def command_of(example: Path, arguments: str) -> list[str]:
    """The one line of its docstring, up to the report, as after `python`, with `arguments` for the script."""
    (line,) = re.findall(r"^    (.+?) && fp8debug report\b", example.read_text(encoding="utf-8"), re.MULTILINE)
    words = [*shlex.split(line), *shlex.split(arguments)]
    program = {"python": [], "fp8debug": ["-m", "fp8debug"]}[words[0]]
    return [*program, *(str(example) if word.endswith(example.name) else word for word in words[1:])]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, repository: Path, tmp_path: Path, warm_trainers: Any) -> None:
    arguments, n_layers = EXAMPLES[name]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # torchrun
    done = warm_trainers.run(tmp_path, *command_of(repository / "examples" / name, arguments), PATH=path)
    assert done.returncode == 0, done.stderr[-3000:]
    with open_run(find_run(None, tmp_path / "fp8debug-runs").path) as run:
        assert run.manifest.status == "closed"
        trained = run.con.execute("select count(distinct layer) from tensors where tensor = 'dy'").fetchall()
        assert trained == [(n_layers,)]
