"""Transformer Engine's debug API, `nvdlfw_inspect`: started by us, or joined where the user has started it."""

from __future__ import annotations

import atexit
import copy
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fp8debug.hooks.backends.transformer_engine.feature import FEATURE, FEATURE_DIR, Fp8Debug
from fp8debug.hooks.backends.transformer_engine.gemms import PACKAGE

DEBUG_STATE = f"{PACKAGE}.debug.pytorch.debug_state"
_MISSING = "nvdlfw-inspect is not installed (pip install nvdlfw-inspect)"
_TOO_LATE = (
    "Transformer Engine's debug API was not started before its first module was made (run the script under fp8debug "
    "attach, or call fp8debug.hooks.backends.transformer_engine.prepare() before the model is made)"
)


class _Own:
    """The manager that we have started, and why there is none."""

    manager: Any = None
    problem: str | None = None


def debug_config(patterns: Sequence[str] = ()) -> dict[str, Any]:
    """A config for `nvdlfw_inspect` with one section for our feature.

    Args:
        patterns: regexes on Transformer Engine's names of layers, any of which is enough; none: all layers. What is
            recorded of them is still what fp8debug was asked for.
    """
    pattern = "|".join(f"(?:{p})" for p in patterns) or ".*"
    section = {"layers": {"layer_name_regex_pattern": pattern}, PACKAGE: {FEATURE: {"enabled": True}}}
    return {"fp8debug": {"enabled": True, **section}}


def manager() -> Any:
    """The manager of `nvdlfw_inspect` that runs; None when there is none."""
    return getattr(sys.modules.get("nvdlfw_inspect.api"), "DEBUG_MANAGER", None)


def is_own() -> bool:
    """Whether we have started it: then nobody else counts its iterations."""
    return _Own.manager is not None and _Own.manager is manager()


def problem() -> str | None:
    """Why Transformer Engine's modules do not call its debug API; None when they do."""
    if _Own.problem is not None:
        return _Own.problem
    state = sys.modules.get(DEBUG_STATE)
    if state is None:
        return "this Transformer Engine has no debug API (it came with 2.3)"
    if manager() is not None and state.TEDebugState.debug_enabled:
        return None
    return _MISSING if importlib.util.find_spec("nvdlfw_inspect") is None else _TOO_LATE


def start() -> None:
    """Start the debug API, unless it runs or a module was made without it; notes what goes wrong, raises nothing."""
    try:
        if manager() is None and sys.modules[DEBUG_STATE].TEDebugState.debug_enabled is not False:
            _start()
    except (Exception, SystemExit) as error:  # it exits over files that it cannot load; the training goes on without it
        give_up(error)
        if manager() is not None:
            sys.modules["nvdlfw_inspect.api"].end_debug()


def give_up(error: BaseException) -> None:
    """Note why there will be no debug API."""
    _Own.problem = f"nvdlfw-inspect could not be started ({type(error).__name__}: {error})"


def _start() -> None:
    if importlib.util.find_spec("nvdlfw_inspect") is None:
        _Own.problem = _MISSING
        return
    _initialize(Path(str(sys.modules[DEBUG_STATE].__file__)).parents[1] / "features")


def start_late() -> None:
    """Start it for modules that exist already, unless Transformer Engine has ruled that out.

    It rules, when a module is made, if `nvdlfw_inspect` has been imported by then.
    """
    module = sys.modules.get(DEBUG_STATE)
    if module is None or manager() is not None or module.TEDebugState.debug_enabled is not None:
        return
    start()
    if manager() is not None:
        module.TEDebugState.initialize()


def _initialize(te_features: Path) -> None:
    import nvdlfw_inspect.api as debug_api

    logs = tempfile.mkdtemp(prefix="fp8debug-nvdlfw-inspect-")  # it always writes logs: nothing of ours is in them
    atexit.register(shutil.rmtree, logs, ignore_errors=True)
    debug_api.initialize(config_file=debug_config(), feature_dirs=[str(te_features), str(FEATURE_DIR)], log_dir=logs)
    _Own.manager, _Own.problem = debug_api.DEBUG_MANAGER, None


def join(layer_name: str) -> None:
    """Have our feature called for a layer too, whatever sections of the user's config match it.

    A section of ours would be refused wherever one of theirs matches: `nvdlfw_inspect` allows one a layer. So the
    layer's own entry, made from theirs, gets our feature beside their features.

    Raises:
        ValueError: two sections of the user's config match the layer; their training is about to stop over that.
    """
    from nvdlfw_inspect.config_manager import ConfigManager
    from nvdlfw_inspect.registry import Registry

    namespace = Registry.data[PACKAGE]
    if FEATURE not in namespace.features:
        Registry.register_feature(namespace=PACKAGE)(Fp8Debug)
    theirs = ConfigManager.get_config_for_layer(layer_name)
    if FEATURE not in theirs.get(PACKAGE, {}):
        joined = copy.deepcopy(theirs)
        joined.setdefault(PACKAGE, {})[FEATURE] = {"enabled": True}
        ConfigManager.layer_name_to_config_cache[layer_name] = joined
        namespace.api._api_cache.clear()  # who is called for a layer, as it was


def begin_iteration(step: int) -> None:
    """Count on to `step`, in a manager of ours; and drop what it remembers of every call, which is never read again."""
    import nvdlfw_inspect.api as debug_api
    from nvdlfw_inspect.logging import get_logger
    from nvdlfw_inspect.registry import Registry

    debug_api.initialize_training_step(step)
    Registry.data[PACKAGE].api._api_cache.clear()
    for seen in ("logged_api_encountered", "logged_api_executed"):
        getattr(get_logger(), seen, set()).clear()


def iteration() -> int:
    """The manager's count of steps."""
    return int(getattr(manager(), "_trainer_iteration_count", 0))
