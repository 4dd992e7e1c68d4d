"""A plan for torchtitan: `filter_fqns` of its Float8 converter.

As `torchtitan/components/quantization/utils.py` (module_filter_fn) reads it: an nn.Linear is left alone when any entry
is a part of its name, wherever in it.
"""

from __future__ import annotations

from dataclasses import replace

from fp8debug.analysis.plans.export import Export, Note, Request, head
from fp8debug.analysis.plans.linear import linear_departures
from fp8debug.analysis.plans.paths import linear_fqn
from fp8debug.analysis.plans.text import comments
from fp8debug.errors import some
from fp8debug.plans import PlanEntry, toml_string

_HOW = (
    'For the TOML config of a training, with "quantize.linear.float8" among model.converters. Older versions have the '
    "list in [float8], newer ones as Float8LinearConverter.Config(filter_fqns=[...]) in Python.",
    "An entry leaves out every nn.Linear whose name it is a part of.",
)


def export(request: Request) -> Export:
    """The TOML table, with the command line's flag as a comment; whole layers alone."""
    members, notes = linear_departures(request)
    entries: list[PlanEntry] = []
    items: list[str] = []
    for member in members:
        others = _others(request, member.fqn)
        if others:
            notes.append(Note(member.layer, f"A part of other names, so these leave FP8 too: {some(others)}"))
        also = f". A part of other names, so also: {some(others)}" if others else ""
        entries += [member.entry, *(replace(member.entry, layer=name) for name in others)]
        items += [*comments([member.comment + also], "    "), f"    {toml_string(member.fqn)},"]
    names = [member.fqn for member in members]
    lines = comments(head(request, "torchtitan", _HOW))
    if names and not any("," in name or not name.isprintable() for name in names):
        lines += comments([f'--quantize.linear.float8.filter_fqns="{",".join(names)}"'])
    lines += ["", "[quantize.linear.float8]", "filter_fqns = [", *items, "]"]
    return Export("\n".join(lines) + "\n", request.written(entries), tuple(notes))


def _others(request: Request, part: str) -> list[str]:
    return request.others(linear_fqn, lambda path: part in path)
