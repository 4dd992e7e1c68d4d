"""Layers inside torch.compile: operators that the compiler leaves alone report the tensors while its graph runs.

A hook that is traced sees no numbers, so it puts an operator into the graph instead; at run time that one gets the real
tensors and hands them to the layer's ordinary hook. Nothing is specialised on the layer: which one it is stands in a
tensor, so blocks of one class share a graph as they did before.

Of the forward's operator a number comes back, its ticket, which autograd saves for the backward's: `dy` is reported
under the key of its own forward, wherever the compiler puts it.
"""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fp8debug.hooks.backends.base import Observer

Function = TypeVar("Function", bound=Callable[..., Any])

_PLAIN = (Tensor, nn.Parameter)
_KEPT_STEPS = 2
"""A backward belongs to the step under way or to the one before."""

_numbers = itertools.count(1)
_watches: weakref.WeakValueDictionary[int, GraphWatch] = weakref.WeakValueDictionary()
_running = threading.local()
_library: torch.library.Library | None = None
"""The operators live as long as it does."""


class EagerHook(Protocol):
    """What a layer's forward hook offers to the graph of a compiler."""

    def observe_at_run_time(self, module: nn.Module, x: Tensor, weight: Tensor | None, y: Tensor) -> None:
        """Report real tensors and put tensor hooks on `x` and `y`, as the hook does without a compiler."""


class GraphWatch:
    """One layer as the operators see it: `token` tells which one it is, and goes into each graph as an input."""

    def __init__(self, observer: Observer, module: nn.Module, hook: EagerHook) -> None:
        _allow_contexts()
        self.number = next(_numbers)
        self.token = torch.tensor([self.number]) if has_operators() else None
        """None where this torch is too old."""
        self.observer = observer
        self._module = weakref.ref(module)
        self._hook = weakref.ref(hook)
        self._tickets = itertools.count(1)
        self._begun = 0
        """Ticket of the input of the call under way."""
        self._waiting: dict[int, tuple[int, tuple[Callable[[Tensor], object], ...]]] = {}
        """Ticket → its step, and the tensor hooks that wait for the gradient."""
        _watches[self.number] = self

    def begin(self) -> int:
        """The layer is about to run on an input whose gradient is wanted; returns its ticket."""
        self._begun = next(self._tickets)
        return self._begun

    def forward(
        self, x: Tensor, weight: Tensor | None, y: Tensor, has_gradient: bool, autocast: torch.dtype | None
    ) -> int:
        """The layer has run; returns the ticket of its `dy`.

        Args:
            has_gradient: whether there will be a `dy`.
            autocast: dtype of the autocast region that the layer was traced in; while its graph runs there is none.
        """
        begun, self._begun = self._begun, 0
        module, hook = self._module(), self._hook()
        if module is None or hook is None:
            return 0
        x, y = _leaf(x, bool(begun)), _leaf(y, has_gradient)
        with _in_graph(), nullcontext() if autocast is None else torch.autocast(x.device.type, autocast):
            hook.observe_at_run_time(module, x, _parameter_of(module, weight), y)
        if begun:
            self._wait(begun, x)
        return self._wait(next(self._tickets), y) if has_gradient else 0

    def gradient(self, ticket: int, value: Tensor) -> int:
        """The gradient that `ticket` stands for has been computed."""
        _, hooks = self._waiting.get(ticket, (0, ()))
        with _in_graph():
            for hook in hooks:
                hook(value.detach())
        return 0

    def _wait(self, ticket: int, leaf: Tensor) -> int:
        step = self.observer.clock.step
        while self._waiting and self._waiting[oldest := next(iter(self._waiting))][0] <= step - _KEPT_STEPS:
            del self._waiting[oldest]
        self._waiting[ticket] = step, tuple((leaf._backward_hooks or {}).values())
        return ticket


def runs_in_graph() -> bool:
    """Whether what is reported on this thread now comes out of a graph, whose own GEMMs nobody can see."""
    return getattr(_running, "in_graph", False)


@contextmanager
def _in_graph() -> Iterator[None]:
    _running.in_graph = True
    try:
        yield
    finally:
        _running.in_graph = False


def never_alone(function: Function) -> Function:
    """Decorator of a hook: a compiler may trace it with what is around it, but does not make a graph of it alone.

    Between two graphs a hook runs as it does without a compiler.
    """
    frames: Any = getattr(torch._C, "_dynamo", None)  # not torch._dynamo, which takes a second to import
    action = getattr(frames and frames.eval_frame, "_FrameAction", None)
    if action is not None:
        skip = frames.eval_frame._FrameExecStrategy(action.SKIP, action.SKIP)
        frames.eval_frame.set_code_exec_strategy(function.__code__, skip)
    return function


def watch_output(token: Tensor | None, x: Any, weight: Tensor | None, output: Any) -> Any:
    """Traced by a compiler behind a layer: what the layer's forward hook is to return."""
    y = output[0] if isinstance(output, (tuple, list)) and output else output
    if token is None or torch.compiler.is_exporting() or type(x) not in _PLAIN or type(y) not in _PLAIN:
        return None
    device = x.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    given = weight if type(weight) in _PLAIN else None
    ticket = torch.ops.fp8debug.forward(token, x, given, y, y.requires_grad, autocast)
    if not y.requires_grad:
        return None
    watched = _Watched.apply(y, ticket)  # type: ignore[no-untyped-call]
    if y is output:
        return watched
    rest = (watched, *output[1:])
    return type(output)(*rest) if hasattr(output, "_fields") else type(output)(rest)


def watch_input(token: Tensor | None, x: Tensor) -> Any:
    """Traced by a compiler before a layer: what the layer is to read in place of `x`, so that its `dx` is seen."""
    if token is None or torch.compiler.is_exporting() or type(x) not in _PLAIN:
        return x
    return _Watched.apply(x, torch.ops.fp8debug.begin(token))  # type: ignore[no-untyped-call]


def forget_graphs() -> bool:
    """Have what a compiler has made so far be made again at its next call; returns whether there was anything.

    A graph made before a hook came does not ask for it: that would cost time at each call.
    """
    dynamo = sys.modules.get("torch._dynamo")  # none where nothing was compiled
    if dynamo is None or not dynamo.convert_frame.input_codes.seen:
        return False
    dynamo.reset()
    return True


class _Watched(torch.autograd.Function):
    """Identity whose backward shows the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ticket: Tensor) -> Tensor:
        ctx.save_for_backward(ticket)
        # No view in autograd's eyes: one made in here could not be modified in place, as by ReLU(inplace=True).
        same: Tensor = torch.ops.aten._unsafe_view(value, value.shape)
        return same

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ticket,) = ctx.saved_tensors
        torch.ops.fp8debug.gradient(ticket, gradient)
        return gradient, None


@cache
def has_operators() -> bool:
    """Make torch.ops.fp8debug, once; False where this torch is too old for them.

    The forward's operators mutate the token, and the backward's has an effect: so the compiler drops none of them. The
    backward's may mutate nothing, since autograd refuses a saved tensor that has changed.
    """
    try:
        from torch._library.effects import EffectType
    except ImportError:
        return False
    global _library
    library = _library = torch.library.Library("fp8debug", "DEF")
    library.define("begin(Tensor(a!) token) -> Tensor")
    library.define(
        "forward(Tensor(a!) token, Tensor x, Tensor? weight, Tensor y, bool has_gradient, ScalarType? autocast)"
        " -> Tensor"
    )
    library.define("gradient(Tensor ticket, Tensor value) -> ()")
    for name, run in (("begin", _begin), ("forward", _forward), ("gradient", _gradient)):
        library.impl(name, run, "CompositeExplicitAutograd")
    fake, batched = torch.library.register_fake, torch.library.register_vmap
    fake("fp8debug::begin", _fake_ticket, lib=library)
    fake("fp8debug::forward", _fake_ticket, lib=library)
    fake("fp8debug::gradient", lambda ticket, value: None, lib=library)
    batched("fp8debug::forward", lambda info, dims, *args: (torch.ops.fp8debug.forward(*args), None), lib=library)
    batched("fp8debug::gradient", lambda info, dims, *args: (torch.ops.fp8debug.gradient(*args), None), lib=library)
    torch.library._register_effectful_op("fp8debug::gradient", EffectType.ORDERED, lib=library)
    return True


def _allow_contexts() -> None:
    """Keep -W error from stopping the compiler, which makes an object of torch.autograd.Function where it traces one.

    Where warnings are as they are by default, nothing changes.
    """
    message = ".*should not be instantiated"
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.filterwarnings("ignore", message, DeprecationWarning)


def _begin(token: Tensor) -> Tensor:
    return _ticket(int(token), GraphWatch.begin)


def _forward(token: Tensor, *seen: Any) -> Tensor:
    return _ticket(int(token), GraphWatch.forward, *seen)


def _gradient(ticket: Tensor, value: Tensor) -> None:
    number, own = ticket.tolist()
    if own:
        _ticket(number, GraphWatch.gradient, own, value)


def _ticket(number: int, action: Callable[..., int], *args: Any) -> Tensor:
    """Have the watch of that number do it; whatever goes wrong in there is ours and must not reach the training."""
    watch = _watches.get(number)
    own = 0
    if watch is not None and watch.observer.active:
        try:
            own = action(watch, *args)
        except Exception as error:
            watch.observer.fail(error)
    return torch.tensor((number, own))


def _fake_ticket(token: Tensor, *seen: Any) -> Tensor:
    return token.new_empty(2)


def _leaf(value: Tensor, has_gradient: bool) -> Tensor:
    """The same numbers as a tensor that keeps its hooks to itself."""
    return value.detach().requires_grad_(has_gradient)


def _parameter_of(module: nn.Module, weight: Tensor | None) -> Tensor | None:
    """The parameter that the graph was given as `weight`; itself where a script computes with another one."""
    for own in module._parameters.values():
        if own is not None and weight is not None and own.data_ptr() == weight.data_ptr() and own.shape == weight.shape:
            return own
    return weight
