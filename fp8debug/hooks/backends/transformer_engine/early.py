"""Starting the debug API at the last moment before Transformer Engine's first module is made.

Not when the package is imported: a script that starts `nvdlfw_inspect` itself would then be told that it runs
already. At the first module it has either done so, or Transformer Engine would refuse it from then on. That moment
is `TEDebugState.initialize()`, which every module calls for just this decision.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fp8debug.hooks.backends.transformer_engine import inspection


class _Watch(MetaPathFinder):
    """Wraps `TEDebugState.initialize` once its module has been imported; finds nothing itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != inspection.DEBUG_STATE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                return _telling(spec)
        return None


_WATCH = _Watch()
_wrapped: list[tuple[Any, Any]] = []


def prepare() -> None:
    """Let Transformer Engine's debug API start with its first module; call it before the model is made.

    Costs nothing where Transformer Engine is never used. `fp8debug attach` calls it.
    """
    module = sys.modules.get(inspection.DEBUG_STATE)
    if module is not None:
        _wrap(module)
    elif _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)


def forget() -> None:
    """Take back what `prepare` has put anywhere; what runs goes on, since modules may be between two passes."""
    if _WATCH in sys.meta_path:
        sys.meta_path.remove(_WATCH)
    while _wrapped:
        state, original = _wrapped.pop()
        state.initialize = original


def _telling(spec: ModuleSpec) -> ModuleSpec:
    loader: Any = spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is not None:

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _wrap(module)

        loader.exec_module = exec_module
    return spec


def _wrap(module: ModuleType) -> None:
    try:
        _wrap_initialize(module)
    except Exception as error:  # made otherwise in this version; importing it must not fail over that
        inspection.give_up(error)


def _wrap_initialize(module: ModuleType) -> None:
    state = getattr(module, "TEDebugState", None)
    if state is None or any(known is state for known, _ in _wrapped):
        return
    original = state.__dict__["initialize"]

    @functools.wraps(original.__func__)
    def initialize(cls: type) -> Any:
        inspection.start()
        return original.__get__(None, cls)()

    _wrapped.append((state, original))
    state.initialize = classmethod(initialize)
