"""Every GEMM of a program, whoever computes it: what a capture is compared with."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from fp8debug.hooks.backends.dispatch.gemms import gemm_operations
from fp8debug.hooks.clock import in_backward


class SeenGemm(NamedTuple):
    """A forward GEMM, (M, K) times (K, N), `batch` of them at once."""

    module: nn.Module | None
    """The innermost module that was being called; None: none was."""
    operation: str
    batch: int
    m: int
    k: int
    n: int

    @property
    def n_multiplications(self) -> int:
        """Multiplications of one such GEMM."""
        return self.batch * self.m * self.k * self.n


class GemmCensus(TorchDispatchMode):
    """Counts forward GEMMs by the module that computes them; use it around a whole program."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[SeenGemm] = Counter()
        self._readers = gemm_operations()
        self._modules: list[nn.Module] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> GemmCensus:
        self._handles = [
            torch_module.register_module_forward_pre_hook(lambda module, args: self._modules.append(module)),
            torch_module.register_module_forward_hook(self._on_return, always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = self._readers.get(func)
        if read is not None and not in_backward() and isinstance(result, torch.Tensor):
            gemm = read(args, kwargs or {}, result)
            if gemm is not None:
                batch = gemm.a.shape[0] if gemm.a.dim() == 3 else 1
                m, k, n = gemm.a.shape[-2], gemm.a.shape[-1], gemm.b.shape[-1]
                module = self._modules[-1] if self._modules else None
                self.counts[SeenGemm(module, func.name().partition("::")[2].partition(".")[0], batch, m, k, n)] += 1
        return result

    def _on_return(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._modules and self._modules.pop() is not module:
            pass
