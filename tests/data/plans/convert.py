"""Convert models with torchao, or through accelerate, as written plans say; print which layers stayed nn.Linear."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from torch import nn

sys.path.insert(0, os.getcwd())


def build() -> nn.Module:
    """Linear layers under names that are hard to write down."""
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(11))
    for name in json.loads(sys.argv[2]):
        model.add_module(name, nn.Linear(32, 32))
    model.odd = nn.Linear(24, 8)
    return model


def convert(plan: Any, model: nn.Module) -> list[str]:
    """Names of the layers that stayed as they were."""
    from torchao.float8 import convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear

    if hasattr(plan, "recipe_kwargs"):
        from accelerate.utils.ao import convert_model_to_fp8_ao

        kwargs = plan.recipe_kwargs(enable_fsdp_float8_all_gather=False)
        convert_model_to_fp8_ao(model, config=kwargs.config, module_filter_func=kwargs.module_filter_func)
    else:
        convert_to_float8_training(model, module_filter_fn=plan.module_filter_fn)
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return [name for name, module in linears if not isinstance(module, Float8Linear)]


def main() -> None:
    """argv: names of plans' modules and names of layers, each as JSON."""
    answers = []
    for name in json.loads(sys.argv[1]):
        wrapped = nn.Module()
        wrapped._orig_mod = build()  # as torch.compile names what it wraps
        answers.append([convert(__import__(name), model) for model in (build(), wrapped)])
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
