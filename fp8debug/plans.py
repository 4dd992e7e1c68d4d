"""A fallback plan: which layers, GEMMs and operands leave the recipe of the rest, and why. Its file is TOML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fp8debug.config import parse_recipe_text
from fp8debug.errors import UsageError, nearest
from fp8debug.reading import parse_toml, read_text

BF16 = "bf16"
"""The change of an entry that leaves low precision."""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One departure from the plan's recipe."""

    layer: str
    """Exact name of the layer, without wrapper prefixes."""
    change: str
    """`bf16`, or the recipe that replaces the plan's, such as `delayed:margin=1` or `mxfp8`."""
    tensor: str | None = None
    """The operand that the recipe is for (x, w, dy); None: all of them."""
    gemm: str | None = None
    """The GEMM it is for (fprop, dgrad, wgrad); None: all of them."""
    reason: str = ""
    """One sentence for a person."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A recipe for the model, and the departures from it."""

    recipe: str
    """What everything else computes with."""
    entries: tuple[PlanEntry, ...] = ()
    run: str = ""
    """Id of the run that it was made from."""
    flops_kept: float | None = None
    """Share of the GEMM FLOPs that stay in low precision, 0 to 1; None: unknown."""

    def change_of(self, layer: str, tensor: str, gemm: str) -> str:
        """What the GEMM `gemm` of `layer` reads `tensor` in: the plan's recipe, another recipe, or `bf16`.

        Of several entries the last one that is about it counts.
        """
        changes = [
            entry.change
            for entry in self.entries
            if entry.layer == layer and entry.tensor in (None, tensor) and entry.gemm in (None, gemm)
        ]
        return changes[-1] if changes else self.recipe

    @property
    def layers_in_bf16(self) -> tuple[str, ...]:
        """Layers that leave low precision as a whole."""
        whole = (e.layer for e in self.entries if e.change == BF16 and e.tensor is None and e.gemm is None)
        return tuple(dict.fromkeys(whole))


def plan_text(plan: Plan) -> str:
    """The plan as a TOML file that `read_plan` reads, with the reason above each entry."""
    lines = ["# Made by `fp8debug plan`; `fp8debug attach --plan FILE` and `fp8debug verify --plan FILE` read it."]
    lines += [] if plan.entries else ["# There is nothing to change: this file changes nothing."]
    lines.append(f"recipe = {toml_string(plan.recipe)}")
    if plan.run:
        lines.append(f"run = {toml_string(plan.run)}")
    if plan.flops_kept is not None:
        lines.append(f"flops-kept = {plan.flops_kept!r}")
    for entry in plan.entries:
        lines += ["", f"# {one_line(entry.reason)}".rstrip(), "[[entry]]"]
        lines += [
            f"{name} = {toml_string(value)}"
            for name in ("layer", "tensor", "gemm", "change")
            if (value := getattr(entry, name)) is not None
        ]
        lines.append(f"reason = {toml_string(entry.reason)}")
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """The text as a comment may hold it: blanks joined, control characters escaped."""
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words)


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises:
        UsageError: it cannot be read, or is no plan.
    """
    try:
        table = parse_toml(read_text(path))
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror}; `fp8debug plan -o FILE` makes one") from error
    except ValueError as error:
        raise UsageError(f"{path} is no plan of fp8debug: it is not valid TOML: {error}") from error
    known = {"recipe", "run", "flops-kept", "entry"}
    _refuse_unknown(path, table, known)
    entries = table.get("entry", [])
    if not isinstance(table.get("recipe"), str) or not isinstance(entries, list):
        raise UsageError(f'{path} is no plan of fp8debug: expected `recipe = "..."` and [[entry]] tables')
    _check_recipe(path, "the plan", table["recipe"])
    return Plan(table["recipe"], tuple(_entry(path, e) for e in entries), table.get("run", ""), table.get("flops-kept"))


def _entry(path: Path, table: object) -> PlanEntry:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: an entry is {table!r}; expected a table, [[entry]]")
    _refuse_unknown(path, table, set(PlanEntry.__slots__))
    for name in ("layer", "change"):
        if not isinstance(table.get(name), str):
            raise UsageError(f"{path}: an [[entry]] has {name} = {table.get(name)!r}; expected a text")
    for name, words in (("tensor", ("x", "w", "dy")), ("gemm", ("fprop", "dgrad", "wgrad"))):
        if table.get(name) not in (None, *words):
            raise UsageError(f"{path}: {table['layer']} has {name} = {table[name]!r}; expected {', '.join(words)}")
    if table["change"] != BF16:
        _check_recipe(path, table["layer"], table["change"])
    return PlanEntry(**table)


def _check_recipe(path: Path, whose: str, text: str) -> None:
    """Refuse a recipe that does not exist here, before trainings that end in it."""
    try:
        parse_recipe_text(text)
    except UsageError as error:
        raise UsageError(f"{path}: {whose}: {error}") from error


def _refuse_unknown(path: Path, table: dict[str, object], known: set[str]) -> None:
    for key in table:
        if key not in known:
            near = nearest(key, known) or sorted(known)
            raise UsageError(f"{path}: unknown key {key!r}; did you mean {' or '.join(near)}?")


def toml_string(text: str) -> str:
    """A TOML basic string, ASCII's escapes being JSON's; what a terminal or an editor would obey is escaped too."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(
        c if c.isprintable() else f"\\u{ord(c):04x}" if c <= "\uffff" else f"\\U{ord(c):08x}" for c in quoted
    )
