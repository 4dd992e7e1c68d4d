"""Runs whose right remedy is known: operands whose size follows a course, under delayed scaling worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

Array = npt.NDArray[np.float32]
_LARGEST_E4M3 = 448.0


class Courses:
    """One run in the making; each operand is N(0, 1) times 2^bits[step] at each step."""

    def __init__(self, module: ModuleType, path: Path, recipes: Sequence[str]) -> None:
        self._module = module
        self.run: SyntheticRun = module.SyntheticRun(path, recipes=list(recipes))

    def bell(self, shape: tuple[int, int] = (32, 32), seed: int = 5) -> Array:
        """BF16 values from N(0, 1)."""
        x: Array = self._module.as_bfloat16(np.random.default_rng(seed).normal(0, 1, shape))
        return x

    def follow(self, layer: str, bits: Sequence[int], sampled: Sequence[int], *, length: int = 1024) -> None:
        """Add x of `layer` under delayed scaling: the scale is 1 at first, then 448 / largest of the last amaxes.

        Args:
            layer: its name.
            bits: exponent at each step.
            sampled: steps with a histogram.
            length: how many amaxes the recipe remembers.
        """
        recipe = "delayed" if length == 1024 else f"delayed:amax_history_len={length}"
        amaxes: list[float] = []
        for step, exponent in enumerate(bits):
            x = np.ldexp(self.bell(), exponent).astype(np.float32)
            scale = np.float32(_LARGEST_E4M3 / max(amaxes[-length:]) if amaxes else 1.0)
            amaxes.append(float(np.abs(x).max()))
            forced = self._module.ForcedScale(float(scale), recipe, "simulated", n_rolls=step)
            self.run.add(layer, "x", x, step=step, sampled=step in sampled, with_current=False, scales=(forced,))

    def force(self, layer: str, bits_off: float, n_steps: int, recipe: str = "delayed") -> int:
        """Add x of `layer`, always the same, under a framework's scale that is `bits_off` too large; the last seq."""
        x, seq = self.bell(), -1
        scale = _LARGEST_E4M3 / float(np.abs(x).max()) * 2.0**bits_off
        for step in range(n_steps):
            forced = self._module.ForcedScale(float(np.float32(scale)), recipe, "framework", n_rolls=step)
            seq = self.run.add(
                layer, "x", x, step=step, scales=(forced,), sampled=step > n_steps - 5, with_current=recipe != "current"
            )
        return seq


@pytest.fixture(scope="module")
def new_courses(synthetic_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Courses]:
    """`new_courses(*recipes)` begins a run."""
    return lambda *recipes: Courses(synthetic_run, tmp_path_factory.mktemp("run"), recipes)


@pytest.fixture(scope="session")
def outcomes() -> Callable[[Any], list[tuple[str, str, str]]]:
    """The table of a remedy in short: kind, change and outcome of each trial."""
    return lambda remedy: [(trial.kind, trial.change, trial.outcome) for trial in remedy.trials]
