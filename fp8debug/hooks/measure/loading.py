"""Choosing an engine by name, or the best that is installed."""

from __future__ import annotations

import importlib.util

from fp8debug.config import ENGINES
from fp8debug.errors import UsageError, nearest
from fp8debug.hooks.measure.engine import Engine


def best_engine() -> str:
    """Name of the fastest engine that is installed."""
    return "torch" if importlib.util.find_spec("numba") is None else "numba"


def load_engine(name: str | None = None) -> Engine:
    """Return the engine called `name`; None takes numba where it is installed, else torch.

    Raises:
        UsageError: for an unknown name, or numba asked for and not installed.
    """
    if name is None:
        name = best_engine()
    if name == "torch":
        from fp8debug.hooks.measure.counting.torch_ops import TorchEngine

        return TorchEngine()
    if name != "numba":
        guess = (nearest(name, ENGINES) or ["numba"])[0]
        raise UsageError(f"no engine called {name!r}: expected one of {', '.join(ENGINES)}; did you mean {guess!r}?")
    if best_engine() != name:
        raise UsageError("the numba engine needs numba, which is not installed: pip install 'fp8debug[cpu]'")
    from fp8debug.hooks.measure.counting.numba_engine import NumbaEngine

    return NumbaEngine()
