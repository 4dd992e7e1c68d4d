"""Tensors of a field case, put through a session as a backend would report them, and the run opened again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.analysis import Run
from fp8debug.hooks.observed import Observed
from fp8debug.hooks.session import Session
from fp8debug.replay import Moment

GRADIENTS = ("dy", "dx", "dw")


class Replay:
    """A session without a training."""

    def __init__(self, session: Session, path: Path) -> None:
        self.session = session
        self.path = path

    def observe(
        self, tensor: str, value: torch.Tensor, *, step: int = 0, microbatch: int = 0, layer: str = "fc", **more: Any
    ) -> None:
        """Report one tensor."""
        moment = Moment(step, microbatch, 0, "backward" if tensor in GRADIENTS else "forward")
        self.session._observation.observe(
            Observed(layer, tensor, value, more.pop("gemm_dtype", value.dtype), moment, **more)
        )


Opened = Callable[[], Run]
Normal = Callable[..., torch.Tensor]


@pytest.fixture
def replay(tmp_path: Path, request: pytest.FixtureRequest) -> Replay:
    """A session that samples every step; parametrize it indirectly with further options, and names of `layers`."""
    options: dict[str, Any] = {"recipes": ["current"], "engine": "torch", **getattr(request, "param", {})}
    model = nn.Module()
    for layer in options.pop("layers", ("fc",)):
        model.add_module(layer, nn.Linear(2, 2))
    session = fp8debug.attach(model, run_dir=tmp_path / "run", every=1, quiet=True, **options)
    return Replay(session, tmp_path / "run")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], Run]]:
    """`opened()` opens the run that was recorded."""
    runs: list[Run] = []

    def open_it() -> Run:
        runs.append(fp8debug.open_run(tmp_path / "run"))
        return runs[-1]

    yield open_it
    for run in runs:
        run.close()


@pytest.fixture
def normal() -> Callable[..., torch.Tensor]:
    """`normal(*shape, std=1, seed=0)`: float32 from a normal distribution."""

    def make(*shape: int, std: float = 1.0, seed: int = 0) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * std

    return make
