"""A plan for torchao: a Python module with the `module_filter_fn` of `convert_to_float8_training`."""

from __future__ import annotations

from fp8debug.analysis.plans.export import Export, Request, head
from fp8debug.analysis.plans.linear import linear_departures
from fp8debug.analysis.plans.paths import WRAPPERS
from fp8debug.analysis.plans.text import comments

LIST = "HIGH_PRECISION"
"""Name of the tuple in the module: `fp8debug plan --check` reads it without running the file."""
FILTER = "module_filter_fn"
_HOW = (
    "With this file on the path as fp8_plan.py:",
    "    from fp8_plan import module_filter_fn",
    "    convert_to_float8_training(model, module_filter_fn=module_filter_fn)",
)
_BODY = f'''
_WRAPPERS = {WRAPPERS!r}


def {FILTER}(module: nn.Module, fqn: str) -> bool:
    """Whether a module is converted to FP8: an nn.Linear that is not listed and whose sizes are multiples of 16."""
    name = ".".join(part for part in fqn.split(".") if part not in _WRAPPERS)
    if not isinstance(module, nn.Linear) or fqn in {LIST} or name in {LIST}:
        return False
    return module.in_features % 16 == 0 and module.out_features % 16 == 0
'''


def export(request: Request) -> Export:
    """The module; only whole nn.Linear layers are left out."""
    return python_module(request, "torchao", _HOW, "")


def python_module(request: Request, target: str, how: tuple[str, ...], more: str) -> Export:
    """A module with the list of names, the filter, and `more` code after it."""
    members, notes = linear_departures(request)
    lines = [*_head(request, target, how), "", "from torch import nn", "", f"{LIST} = ("]
    for member in members:
        lines += [*comments([member.comment], "    "), f"    {member.fqn!r},"]
    text = "\n".join([*lines, ")"]) + "\n" + _BODY + more
    return Export(text, request.written(member.entry for member in members), tuple(notes))


def _head(request: Request, target: str, how: tuple[str, ...]) -> list[str]:
    first, *rest = head(request, target, ())
    return [*comments([first, *rest]), "#", *(f"# {line}" for line in how)]
