"""Attaching to a script that does not know us: wait for its model to run, hook it, and step aside.

Global hooks only find the models; once an optimizer step has passed they are gone, and come back only when an
optimizer shows up whose parameters belong to no model we know.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from fp8debug.config import CaptureOptions
from fp8debug.hooks.backends import transformer_engine
from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.compiled import never_alone
from fp8debug.hooks.backends.finding import new_layers
from fp8debug.hooks.backends.module_hook import ModuleHook
from fp8debug.hooks.clock import in_backward
from fp8debug.hooks.compiler_starts import CompilerStarts
from fp8debug.hooks.emulate.emulation import explain_nothing
from fp8debug.hooks.emulate.linear import emulated_forward, replace_result
from fp8debug.hooks.entry import matched_line, open_session
from fp8debug.hooks.module_calls import ModuleCalls
from fp8debug.hooks.place import NoSharedRun, find_place
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.ranks import rank_and_world
from fp8debug.hooks.roots import find_roots, is_trainable, living_roots, owning_roots
from fp8debug.hooks.seeding import seed_all
from fp8debug.hooks.session import CloseSummary, Session
from fp8debug.hooks.transforms import outside_transforms
from fp8debug.rundir import LayerInfo


class StopBeforeTraining(BaseException):
    """Raised out of the script's first forward: there is nothing to train for (a listing, a regex without a match).

    Not an Exception, so that a script's own `except Exception` lets it through.
    """

    def __init__(self, exit_code: int, message: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


class AutoAttach:
    """Records an unmodified script."""

    def __init__(
        self,
        options: CaptureOptions,
        *,
        command: Sequence[str],
        script: str,
        say: Callable[[str], None],
        show: Callable[[str], None] = print,
    ) -> None:
        self._options = options
        self._command = command
        self._script = script
        self._say = say
        self._show = show
        self._plan: CapturePlan | None = None
        self._session: Session | None = None
        self._calls = ModuleCalls(self._on_module_call)
        self._compiler = CompilerStarts(self._on_compiler_start)
        self._before_steps: RemovableHandle | None = None
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._found: list[FoundLayer] = []
        self._failed = False
        self._finding = threading.Lock()
        self._process = os.getpid()

    def start(self) -> None:
        """Check the options, seed what is to be seeded, and begin to wait for a model.

        Raises:
            Fp8DebugError: a bad option, or a run directory that is in use.
        """
        self._plan = CapturePlan.from_options(self._options)
        transformer_engine.prepare()
        place = find_place(self._options, self._script)
        if place.world > 1 and self._options.force:  # while nobody waits for this rank: an old run must not be joined
            self._say_moved(place.prepare(force=True))
        else:
            place.check(force=self._options.force)
        if self._options.seed is not None:
            seed_all(self._options.seed)
        self._find_again()
        self._before_steps = register_optimizer_step_pre_hook(self._before_optimizer)

    def _say_moved(self, moved: Path | None) -> None:
        if moved is not None:
            self._say(f"fp8debug: the old run was renamed to {moved}")

    @property
    def rank(self) -> int:
        """Rank of this process, as far as it is known yet."""
        return rank_and_world()[0] if self._session is None else self._session.rank

    @property
    def layers(self) -> list[FoundLayer]:
        """GEMM layers found in the models that ran."""
        return self._found

    @property
    def known_layers(self) -> list[LayerInfo]:
        """The same, and those that showed when they ran."""
        return [] if self._session is None else self._session.layers

    def takes(self, layer: str) -> bool:
        """Whether the layer is recorded."""
        return self._plan is not None and self._plan.selection.takes(layer)

    def flush(self) -> None:
        """Hand what was collected to the writer."""
        if self._session is not None and self._session.active:
            self._session.flush()

    def close(self, status: str = "closed", reason: str | None = None) -> CloseSummary | None:
        """End the capture; None when no model ever ran."""
        self._stop_finding()
        self._forget_steps()
        transformer_engine.forget()
        return None if self._session is None else self._session.close(status, reason)

    def _find_again(self) -> None:
        if not self._failed:
            self._calls.start()
            self._compiler.start()

    def _forget_steps(self) -> None:
        if self._before_steps is not None:
            self._before_steps.remove()
            self._before_steps = None

    def _stop_finding(self) -> None:
        self._calls.stop()
        self._compiler.stop()

    @never_alone
    def _on_module_call(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():  # first: the compiler must trace nothing else of ours
            return
        if module in self._known or in_backward() or torch._C._is_tracing():
            return
        if next(module.parameters(), None) is None:
            return
        hooks_before = frozenset(module._forward_pre_hooks)
        with self._looking() as may_attach:
            if may_attach and module not in self._known:  # by another thread meanwhile
                before = emulated_forward(module)
                self._attach_roots(find_roots(module))
                if emulated_forward(module) is not before:
                    replace_result(module)
        _catch_up(module, args, hooks_before)

    def _on_compiler_start(self) -> None:
        """The function that is being compiled may call a model: all that live are taken, before it is traced."""
        with self._looking() as may_attach:
            if may_attach and (roots := [root for root in living_roots() if root not in self._known]):
                self._attach_roots(roots)

    @never_alone
    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Where no model was found yet, one is trained whose forwards nobody could see."""
        if self._session is None and not self._failed and not torch.compiler.is_compiling():
            # Not now: hooks of all optimizers are being gone through, and a session brings some of its own.
            optimizer.register_step_post_hook(self._after_unseen_step)

    @never_alone
    def _after_unseen_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._session is not None or self._failed:
            return
        with self._looking() as may_attach:
            if may_attach and (roots := owning_roots(optimizer)):
                self._attach_roots(roots)

    @contextmanager
    def _looking(self) -> Iterator[bool]:
        """Around whatever looks for models; yields whether they may be attached in this process still."""
        if os.getpid() != self._process or (self._session is not None and not self._session.active):
            self._stop_finding()  # a forked worker, or we are disabled
            yield False
            return
        try:
            with self._finding, outside_transforms():
                yield True
        except NoSharedRun as error:  # a process group has come since the start
            self._stop_finding()
            raise StopBeforeTraining(2, str(error)) from error
        except Exception as error:  # ours, never the training's
            self._give_up(error)

    def _attach_roots(self, roots: Sequence[nn.Module]) -> None:
        assert self._plan is not None
        found = self._find_new_layers(roots)
        layers = [layer for _, below in found for layer in below]
        if self._options.list_layers:
            self._list_and_stop(layers)
        if not any(self._plan.selection.takes(layer.name) for layer in (*self._found, *layers)):
            if any(map(is_trainable, roots)):
                raise StopBeforeTraining(2, self._plan.selection.explain_no_match([layer.name for layer in layers]))
        elif layers:
            self._require_exclusion(roots, layers)
            self._require_emulation(layers)
            session = self._open()
            for root, below in found:
                session.attach_layers(root, below)
            self._found += layers
            if session.rank == 0:
                self._say(matched_line(self._found, self._plan))
                if session.emulation is not None:
                    self._say(session.emulation.summary())
        for root in roots:
            self._known.update(root.modules())

    def _require_exclusion(self, roots: Sequence[nn.Module], layers: Sequence[FoundLayer]) -> None:
        """Stop when exclusions were asked for and the model that is about to be trained has no layer to leave out."""
        assert self._plan is not None
        if self._options.exclude_must_match and self._session is None and any(map(is_trainable, roots)):
            nothing = self._plan.selection.explain_no_exclusion([(layer.name, layer.raw_name) for layer in layers])
            if nothing is not None:
                raise StopBeforeTraining(2, nothing)

    def _require_emulation(self, layers: Sequence[FoundLayer]) -> None:
        """Stop when the first model that runs has no layer for the emulation that was asked for."""
        assert self._plan is not None
        if self._plan.emulation is not None and self._session is None:
            taken = [layer for layer in layers if self._plan.selection.takes(layer.name)]
            nothing = explain_nothing(self._plan.emulation, taken)
            if nothing is not None:
                raise StopBeforeTraining(2, nothing)

    def _find_new_layers(self, roots: Sequence[nn.Module]) -> list[tuple[nn.Module, list[FoundLayer]]]:
        known, n_before = set(self._known), 0
        if self._session is not None:
            known, n_before = known | self._session.known_modules(), self._session.n_roots
        return new_layers(roots, known, n_before, self._options.backend)

    def _open(self) -> Session:
        if self._session is None:
            assert self._plan is not None
            self._session = open_session(
                self._plan, command=self._command, script=self._script, say=self._say, measure_gradients=True
            )
            self._session.watch.optimizer_listeners.append(self._on_optimizer)
        return self._session

    def _on_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._forget_steps()
        if optimizer in self._optimizers:
            self._stop_finding()
            return
        self._optimizers.add(optimizer)
        known = {id(p) for module in self._known for p in module.parameters(recurse=False)}
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            self._find_again()

    def _list_and_stop(self, layers: Sequence[FoundLayer]) -> None:
        assert self._plan is not None
        for layer in layers if self.rank == 0 else ():
            mark = "+" if self._plan.selection.takes(layer.name) else "-"
            self._show(f"{mark} {layer.name}  {type(layer.module).__name__} {layer.in_features}x{layer.out_features}")
        names = [layer.name for layer in layers]
        if not any(map(self._plan.selection.takes, names)):
            raise StopBeforeTraining(2, self._plan.selection.explain_no_match(names))
        raise StopBeforeTraining(0, matched_line(layers, self._plan))

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        self._stop_finding()
        emulation = None if self._session is None else self._session.emulation
        asked = self._options.emulate is not None or self._options.plan is not None
        if asked and (emulation is None or not emulation.layers):
            # What would go on is not the training that was asked for.
            raise StopBeforeTraining(1, f"cannot emulate: {type(error).__name__}: {error}") from error
        if self._session is not None:
            self._session.fail(error)
        else:
            why = f"{type(error).__name__}: {error}"
            self._say(f"fp8debug: disabled before the first step, the training goes on ({why})")


def _catch_up(module: nn.Module, args: Any, before: frozenset[int]) -> None:
    """Call our pre-hooks that are new on a module which is being called: this call does not know of them yet."""
    for number, hook in tuple(module._forward_pre_hooks.items()):
        is_new = number not in before and number not in module._forward_pre_hooks_with_kwargs
        if is_new and isinstance(getattr(hook, "__self__", hook), ModuleHook):
            hook(module, args)
