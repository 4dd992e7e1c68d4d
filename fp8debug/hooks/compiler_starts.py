"""Every start of torch.compile's compiler, for as long as models are being looked for.

A model that is called inside a compiled function is never called where a global hook would see it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


class CompilerStarts:
    """Listens from the first use of torch.compile on: before that nothing is imported that the script does not need."""

    def __init__(self, on_start: Callable[[], None]) -> None:
        self._on_start = on_start
        self._wrapper: Callable[..., Any] | None = None
        self._is_listening = False

    def start(self) -> None:
        """Begin to listen; does nothing when it has begun."""
        if self._wrapper is not None:
            return
        original = torch.compile

        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            compiled = original(*args, **kwargs)
            if self._wrapper is compile:
                self._listen()
            return compiled

        self._wrapper = compile
        torch.compile = compile

    def stop(self) -> None:
        """Put everything back that is still ours; safe to call twice."""
        if self._wrapper is not None and torch.compile is self._wrapper:
            torch.compile = self._wrapper.__wrapped__  # type: ignore[attr-defined]
        self._wrapper = None
        if self._is_listening:
            self._is_listening = False
            from torch._dynamo.callback import callback_handler

            if self._called in callback_handler.start_callbacks:
                callback_handler.remove_start_callback(self._called)

    def _listen(self) -> None:
        if not self._is_listening:
            from torch._dynamo.callback import callback_handler

            self._is_listening = True
            callback_handler.register_start_callback(self._called)

    def _called(self, args: Any) -> None:
        if self._is_listening:
            self._on_start()
