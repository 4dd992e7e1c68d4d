"""Where the mode is in force: during the outermost call of a module, and during a backward pass.

Both begin and end inside each other or apart, never across, so that modes of the script stay in order. Nothing is
entered while a compiler or a dry run traces.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._C import _TorchDispatchModeKey as ModeKey
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.backends.module_hook import ModuleHook

_autograd: Any = torch.autograd
_DEVICES = ("cpu", "cuda", "xpu")


class Frame(NamedTuple):
    """A module that is being called."""

    module: nn.Module
    asked: dict[str, torch.dtype]
    """dtype that autocast asks GEMMs to run in, by the type of device, where it is in force."""
    graph_task: int
    """The backward pass that the call is part of; -1: of none."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.has_entered: list[bool] = []


class Scopes:
    """Enters `mode` where it is to be in force, and knows which modules are being called."""

    def __init__(
        self,
        mode: TorchDispatchMode,
        begins: Callable[[nn.Module | None], bool],
        fail: Callable[[Exception], None],
    ) -> None:
        self._mode = mode
        self._begins = begins
        """Asked before a scope is entered, with the module (None: a backward pass): is anything to be seen in it?"""
        self._fail = fail
        self.on_call: Callable[[nn.Module], None] = lambda module: None
        """Called for each module that is called while the mode is in force."""
        self.on_return: Callable[[nn.Module], None] = lambda module: None
        """Called when that call is over."""
        self._here = _Thread()
        self._handles: list[RemovableHandle] = []
        self._hooked: set[int] = set()
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None
        self._n_open = 0
        self.n_creating_graph = 0
        """Backward passes under way that are to be differentiated again."""
        self._closed = False

    @property
    def recomputes(self) -> bool:
        """Whether the innermost module is called by the backward pass under way, which recomputes it."""
        frames = self._here.frames
        return bool(frames) and frames[-1].graph_task == torch._C._current_graph_task_id() != -1

    @property
    def frames(self) -> list[Frame]:
        """Modules being called on this thread, the innermost last."""
        return self._here.frames

    def watch(self, module: nn.Module) -> None:
        """Have calls of `module` known, and the mode in force during them."""
        if id(module) not in self._hooked:
            self._hooked.add(id(module))
            self._handles.append(module.register_forward_pre_hook(_Begin(self), prepend=True))
            self._handles.append(module.register_forward_hook(_End(self), always_call=True))

    def watch_backward(self) -> None:
        """Have the mode in force during backward passes, whoever starts them."""
        if self._wrapper is not None or self._closed:
            return
        original = self._original = _autograd._engine_run_backward

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            entered = self._may_enter(None)
            creates_graph = entered and bool(args[3] if len(args) > 3 else kwargs.get("create_graph"))
            self.n_creating_graph += creates_graph
            if entered:
                self._push()
            try:
                return original(*args, **kwargs)
            finally:
                self.n_creating_graph -= creates_graph
                if entered:
                    self._pop()

        self._wrapper = run
        _autograd._engine_run_backward = run

    def close(self) -> None:
        """Remove everything, now or, where a module is being called, at the end of that call."""
        self._closed = True
        if self._wrapper is not None and _autograd._engine_run_backward is self._wrapper:
            assert self._original is not None
            _autograd._engine_run_backward = self._original
            self._wrapper = None
        if not self._n_open:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            self._hooked.clear()

    def begin(self, module: nn.Module) -> None:
        """A module is called."""
        here = self._here
        entered = not here.frames and self._may_enter(module)
        here.frames.append(Frame(module, _autocast_dtypes(), torch._C._current_graph_task_id()))
        here.has_entered.append(entered)
        self._n_open += 1
        if entered:
            self._push()
        if here.has_entered[0]:
            self.on_call(module)

    def end(self, module: nn.Module) -> None:
        """A call is over, whether it returned or raised."""
        here = self._here
        if here.has_entered and here.has_entered[0]:
            self.on_return(module)
        while here.frames:
            frame, entered = here.frames.pop(), here.has_entered.pop()
            self._n_open -= 1
            if entered:
                self._pop()
            if frame.module is module:
                break
        if self._closed and not self._n_open:
            self.close()

    def _may_enter(self, module: nn.Module | None) -> bool:
        try:
            if self._closed or _is_traced() or self._mode in _get_current_dispatch_mode_stack():
                return False
            return self._begins(module)
        except Exception as error:  # ours, never the training's
            self._fail(error)
            return False

    def _push(self) -> None:
        self._mode.__enter__()

    def _pop(self) -> None:
        """Leave the mode. Above it may lie some that a hook of the script has entered: they stay."""
        above = []
        stack = _get_current_dispatch_mode_stack()
        if self._mode not in stack:
            return
        while stack[-1] is not self._mode:
            above.append(_pop_mode())
            stack.pop()
        self._mode.__exit__(None, None, None)
        for mode in reversed(above):
            _push_mode(mode)


class _Begin(ModuleHook):
    """Forward pre-hook."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():  # the compiler must trace nothing of ours
            self._scopes.begin(module)


class _End(ModuleHook):
    """Forward hook."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self._scopes.end(module)


def _autocast_dtypes() -> dict[str, torch.dtype]:
    return {device: torch.get_autocast_dtype(device) for device in _DEVICES if torch.is_autocast_enabled(device)}


def _is_traced() -> bool:
    """Whether a compiler, an export or a dry run is looking at the program instead of running it."""
    if torch._C._is_tracing() or torch._guards.TracingContext.try_get() is not None:
        return True
    return any(
        torch._C._get_dispatch_mode(key) is not None for key in (ModeKey.FAKE, ModeKey.PROXY, ModeKey.FUNCTIONAL)
    )
