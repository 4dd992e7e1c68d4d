"""A plan for accelerate: a Python module with the filter of `AORecipeKwargs`."""

from __future__ import annotations

from fp8debug.analysis.plans.export import Export, Request
from fp8debug.analysis.plans.torchao import FILTER, python_module

_HOW = (
    "With this file on the path as fp8_plan.py:",
    "    from fp8_plan import recipe_kwargs",
    '    Accelerator(mixed_precision="fp8", kwargs_handlers=[recipe_kwargs()])',
    "Accelerate's own filter keeps the first and the last nn.Linear out of FP8; this one keeps out what is listed.",
)
_BODY = f'''

def recipe_kwargs(**options):
    """An AORecipeKwargs with the filter; `options` are its others, such as `config`."""
    from accelerate.utils import AORecipeKwargs

    return AORecipeKwargs(module_filter_func={FILTER}, **options)
'''


def export(request: Request) -> Export:
    """The module; only whole nn.Linear layers are left out."""
    return python_module(request, "accelerate", _HOW, _BODY)
