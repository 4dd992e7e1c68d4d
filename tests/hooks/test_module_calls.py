"""Every module call is heard, and a compiled module does not take our hook for the script's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from fp8debug.hooks.module_calls import ModuleCalls


def test_only_other_hooks_are_counted() -> None:
    heard: list[nn.Module] = []
    original: Any = torch_module._has_any_global_hook
    calls = ModuleCalls(lambda module, args: heard.append(module))
    model = nn.Sequential(nn.Linear(2, 2))
    for _ in range(2):
        calls.start()
        calls.start()
        model(torch.ones(1, 2))
        assert not torch_module._has_any_global_hook()
        for register in ("register_module_forward_pre_hook", "register_module_forward_hook"):
            handle = getattr(torch_module, register)(lambda *args: None)
            assert torch_module._has_any_global_hook()
            handle.remove()
        calls.stop()
        calls.stop()
        assert torch_module._has_any_global_hook is original
        model(torch.ones(1, 2))
    assert heard == 2 * [model, model[0]]
