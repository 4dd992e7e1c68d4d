"""Forwards of one model on one batch: the reference, which is kept, and emulated ones, which are compared with it.

Of every output of a GEMM layer at most a million values are kept on the host (whole rows, evenly spaced), in the dtype
that the layer computes in: 2 MB a call of a layer in BF16. Its own error and what has gathered by then are of those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.emulate.emulation import Emulation
from fp8debug.hooks.emulate.linear import EmulatedForward
from fp8debug.hooks.emulate.operands import Emulator
from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.hooks.inference.batch import Batch
from fp8debug.hooks.inference.noise import Noise
from fp8debug.hooks.inference.outputs import Outputs, read_outputs

KEPT_VALUES = 1 << 20
"""Values kept of each output of a layer."""

OnOutput = Callable[[FoundLayer, Tensor, Tensor], None]
"""Called with a layer, its x and its y, in the order in which layers run."""


@dataclass(slots=True)
class Reference:
    """The forward in high precision."""

    outputs: Outputs
    kept: dict[str, list[Tensor]] = field(default_factory=dict)
    """Rows of y of every call of a layer, in the order in which layers ran."""
    own: dict[str, dict[str, Noise]] = field(default_factory=dict)
    """By variant and layer: the error of the layer alone, fed with the x of this forward."""


class Subject:
    """A model, a batch that fits it, and the layers that can be emulated."""

    def __init__(self, model: nn.Module, batch: Batch, layers: Sequence[FoundLayer]) -> None:
        self.layers = layers
        self._model = model
        self._batch = batch
        parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
        self._device = "cpu" if parameter is None else parameter.device.type
        self._is_wide = parameter is None or parameter.dtype is torch.float32
        self.precision = "BF16 autocast" if self._is_wide else str(parameter.dtype).removeprefix("torch.")  # type: ignore[union-attr]

    def reference(self, variants: Mapping[str, EmulationPlan]) -> Reference:
        """Run in high precision; each layer's own error is taken on the way, once for each of `variants`."""
        kept: dict[str, list[Tensor]] = {}
        own: dict[str, dict[str, Noise]] = {name: {} for name in variants}
        emulators = {name: Emulator(plan) for name, plan in variants.items()}

        def on_output(layer: FoundLayer, x: Tensor, y: Tensor) -> None:
            rows = kept_rows(y)
            kept.setdefault(layer.name, []).append(rows.cpu())
            for name, plan in variants.items():
                noise = own[name].setdefault(layer.name, Noise())
                if plan.keeps(layer.name):
                    continue
                assert isinstance(layer.module, nn.Linear)
                alone = EmulatedForward(layer.module, layer.name, emulators[name], plan.of_layer(layer.name))
                noise.add(rows, kept_rows(alone(x)))

        return Reference(self._run(on_output), kept, own)

    def emulated(self, plan: EmulationPlan, reference: Reference | None = None) -> tuple[Outputs, dict[str, Noise]]:
        """Run emulated; given a reference, each layer's output is compared with the one there."""
        gathered: dict[str, Noise] = {}
        calls: dict[str, int] = {}

        def on_output(layer: FoundLayer, x: Tensor, y: Tensor) -> None:
            call = calls[layer.name] = calls.get(layer.name, -1) + 1
            theirs = [] if reference is None else reference.kept.get(layer.name, [])
            rows = kept_rows(y)
            # Where what runs depends on the values, as in a mixture of experts, calls may not correspond.
            if call < len(theirs) and theirs[call].shape == rows.shape:
                gathered.setdefault(layer.name, Noise()).add(theirs[call], rows.cpu())

        with Emulation(plan) as emulation:
            emulation.add(self.layers)
            return self._run(on_output), gathered

    def _run(self, on_output: OnOutput) -> Outputs:
        last: list[Tensor] = []

        def watch(layer: FoundLayer) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple[Any, ...], y: Any) -> None:
                last[:] = [y]
                on_output(layer, args[0], y)

            return hook

        with ExitStack() as stack:
            stack.enter_context(_in_eval_mode(self._model))
            if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes a second
                stack.enter_context(eagerly())
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._autocast())
            for layer in self.layers:
                handle = layer.module.register_forward_hook(watch(layer))
                stack.callback(handle.remove)
            returned = self._call()
            outputs = read_outputs(returned, self._batch, last[0] if last else None)
        if outputs is None:
            raise Fp8DebugError(
                f"{type(self._model).__name__} returned no tensor to compare; expected logits, or a loss and logits"
            )
        return outputs

    def _call(self) -> object:
        try:
            return self._model(*self._batch.args, **self._batch.kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:  # shapes, ids, dtypes
            first = (str(error).splitlines() or [""])[0]
            name = type(self._model).__name__
            raise UsageError(f"{name} cannot run on {self._batch.text}: {type(error).__name__}: {first}") from error

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device, dtype=torch.bfloat16) if self._is_wide else nullcontext()


def eagerly() -> AbstractContextManager[object]:
    """Keep what is compiled from being compiled: hooks and emulation would end its graphs at every layer."""
    if not hasattr(torch.compiler, "set_stance"):  # before torch 2.6
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def kept_rows(y: Tensor) -> Tensor:
    """At most `KEPT_VALUES` of y (..., N): whole rows, evenly spaced; one row at least."""
    rows = y.detach().reshape(-1, y.shape[-1])
    n_kept = max(1, KEPT_VALUES // max(1, rows.shape[1]))
    return rows[:: max(1, -(-rows.shape[0] // n_kept))]


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
