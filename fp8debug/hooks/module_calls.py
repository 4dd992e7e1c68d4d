"""Every call of every module, for as long as models are being looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

_ASKED = "_has_any_global_hook"  # by a compiled module on each call; older torch has none
_OTHERS = (
    *("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks"),
    *("_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs"),
)


class ModuleCalls:
    """A global forward pre-hook.

    A compiled module warns of global hooks, since they run once more for its wrapper; ours may, so it is not counted.
    """

    def __init__(self, on_call: Callable[[nn.Module, Any], None]) -> None:
        self._on_call = on_call
        self._handle: RemovableHandle | None = None
        self._original: Any = None

    def start(self) -> None:
        """Begin to listen; does nothing when it has begun."""
        if self._handle is None:
            self._handle = torch_module.register_module_forward_pre_hook(self._on_call)
            self._original = getattr(torch_module, _ASKED, None)
            if self._original is not None:
                setattr(torch_module, _ASKED, _has_other_hook)

    def stop(self) -> None:
        """Put everything back that is still ours; safe to call twice."""
        if self._handle is None:
            return
        self._handle.remove()
        self._handle = None
        if getattr(torch_module, _ASKED, None) is _has_other_hook:
            setattr(torch_module, _ASKED, self._original)


def _has_other_hook() -> bool:
    return len(torch_module._global_forward_pre_hooks) > 1 or any(getattr(torch_module, name, None) for name in _OTHERS)
