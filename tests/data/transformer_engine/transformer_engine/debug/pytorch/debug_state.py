"""Stand-in: whether modules call the debug API, decided when the first of them is made."""

from __future__ import annotations

import sys
from typing import Any


class TEDebugState:
    """One for the process."""

    debug_enabled: bool | None = None
    layer_count = 1

    @classmethod
    def initialize(cls) -> None:
        """Called by every module while debugging is not enabled."""
        api: Any = sys.modules.get("nvdlfw_inspect.api")
        running = api is not None and api.DEBUG_MANAGER is not None
        if cls.debug_enabled is False and running:
            raise RuntimeError("the debug API was started after a module had been made")
        if "nvdlfw_inspect" in sys.modules:
            cls.debug_enabled = running

    @classmethod
    def get_layer_count(cls) -> int:
        """Numbers modules without a name."""
        cls.layer_count += 1
        return cls.layer_count - 1

    @classmethod
    def get_iteration(cls) -> int:
        """The debug API's count of steps."""
        api: Any = sys.modules["nvdlfw_inspect.api"]
        return int(api.DEBUG_MANAGER._trainer_iteration_count)

    @classmethod
    def _reset(cls) -> None:
        cls.debug_enabled, cls.layer_count = None, 1
