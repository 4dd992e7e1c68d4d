"""fp8debug: see which tensors of a PyTorch training would suffer in FP8, at which step, and why.

    with fp8debug.attach(model, every=50) as session:   # record a training
        ...
    with fp8debug.emulate(model, "current"):            # train as if in FP8, on any device
        ...
    run = fp8debug.open_run("fp8debug-runs/latest")     # ask the record anything, in SQL
    audit = fp8debug.audit_checkpoint("model.safetensors")   # are its scales read the way they were written

Public names are imported when first used: `attach` needs torch, `open_run` needs duckdb, and neither is
wanted by somebody who only needs the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["__version__", "attach", "audit_checkpoint", "emulate", "open_run"]

_HOMES = {
    "attach": "fp8debug.hooks.entry",
    "audit_checkpoint": "fp8debug.analysis.checkpoint",
    "emulate": "fp8debug.hooks.emulate.emulation",
    "open_run": "fp8debug.analysis",
}

if TYPE_CHECKING:
    from fp8debug.analysis import open_run
    from fp8debug.analysis.checkpoint import audit_checkpoint
    from fp8debug.hooks.emulate.emulation import emulate
    from fp8debug.hooks.entry import attach
else:
    # Hidden from type checkers, which would otherwise take any misspelt name for one of these.
    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
