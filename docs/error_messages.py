"""Which messages of errors there are, read from the source: every place that makes an error which a user reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "fp8debug"

_SHOWN = {"Fp8DebugError", "BadValue", "StopBeforeTraining"}
"""Exceptions whose text a user reads; those derived from them are found."""


@dataclass(frozen=True, slots=True)
class Site:
    """One place in the source that makes an error for the user."""

    module: str
    """Path below fp8debug/."""
    line: int
    texts: tuple[str, ...]
    """What it may say, `{name}` for what differs from case to case; empty where it passes on another error's words."""


@dataclass(slots=True)
class _Source:
    """What the texts of one module's errors may refer to."""

    tree: ast.Module
    strings: dict[str, ast.expr] = field(default_factory=dict)


@cache
def sites() -> tuple[Site, ...]:
    """Every place that makes such an exception, raised there or later, by module and line."""
    classes, sources = _sources()
    functions = _functions(sources)
    found = []
    for module, source in sources.items():
        for function, call in _calls(source.tree, classes):
            texts = _texts(call.args[-1], function, source, functions) if call.args else []
            if _last_name(call.func) == "BadValue":  # whoever catches it says what was got
                texts = [f"… expected {text}" for text in texts]
            found.append(Site(module, call.lineno, tuple(dict.fromkeys(texts))))
    return tuple(found)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _sources() -> tuple[set[str], dict[str, _Source]]:
    """The exceptions that are shown, and the modules that speak of one: a third of all, and reading takes long."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    classes = _shown_classes(texts.values())
    mention = re.compile("|".join(classes))
    return classes, {module: _source(text) for module, text in texts.items() if mention.search(text)}


def _source(text: str) -> _Source:
    tree = ast.parse(text)
    named = {node.targets[0].id: node.value for node in tree.body if _is_named_text(node)}  # type: ignore[attr-defined]
    return _Source(tree, named)


def _is_named_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant | ast.JoinedStr)
    )


def _shown_classes(texts: Iterable[str]) -> set[str]:
    classes = [match for text in texts for match in re.findall(r"^class (\w+)\(([\w., ]+)\):", text, re.MULTILINE)]
    shown = set(_SHOWN)
    while more := {name for name, bases in classes if shown & set(bases.split(", "))} - shown:
        shown |= more
    return shown


def _functions(sources: dict[str, _Source]) -> dict[str, tuple[_Function, _Source]]:
    """By bare name; those with a name of their own alone."""
    seen: dict[str, list[tuple[_Function, _Source]]] = {}
    for source in sources.values():
        for node in ast.walk(source.tree):
            if isinstance(node, _Function):
                seen.setdefault(node.name, []).append((node, source))
    return {name: found[0] for name, found in seen.items() if len(found) == 1}


def _calls(tree: ast.Module, classes: set[str]) -> Iterator[tuple[ast.AST, ast.Call]]:
    """(innermost function, or the module, call) of every construction of one of `classes`, in order of lines."""
    found: list[tuple[ast.AST, ast.Call]] = []

    def visit(node: ast.AST, function: ast.AST) -> None:
        if isinstance(node, ast.Call) and _last_name(node.func) in classes:
            found.append((function, node))
        for child in ast.iter_child_nodes(node):
            visit(child, child if isinstance(child, _Function) else function)

    visit(tree, tree)
    return iter(sorted(found, key=lambda pair: pair[1].lineno))


def _texts(
    node: ast.expr, function: ast.AST, source: _Source, functions: dict[str, tuple[_Function, _Source]], depth: int = 3
) -> list[str]:
    """What the expression may say; nothing where that is not written in the source."""

    def of(part: ast.expr) -> list[str]:
        return _texts(part, function, source, functions, depth - 1)

    match node:
        case _ if depth < 0:
            return []
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr():
            return ["".join(_piece(part, source) for part in node.values)]
        case ast.BinOp(op=ast.Add()):
            ends = of(node.right) or [_placeholder(node.right)]
            return [first + ends[0] for first in of(node.left)]
        case ast.IfExp():
            return [*of(node.body), *of(node.orelse)]
        case ast.BoolOp():
            return [text for part in node.values for text in of(part)]
        case ast.Name():
            return [text for value in _assigned(node.id, function) for text in of(value)]
        case ast.Call() if _last_name(node.func) in functions:
            called, home = functions[_last_name(node.func)]
            returned = [part.value for part in ast.walk(called) if isinstance(part, ast.Return) and part.value]
            return [text for value in returned for text in _texts(value, called, home, functions, depth - 1)]
    return []


def _assigned(name: str, function: ast.AST) -> Iterable[ast.expr]:
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.NamedExpr) and any(
            isinstance(target, ast.Name) and target.id == name for target in targets
        ):
            yield node.value


def _piece(part: ast.expr, source: _Source) -> str:
    """A piece of an f-string: its text, or the name of what stands there."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.Name) and value.id in source.strings:
        named = source.strings[value.id]
        pieces = named.values if isinstance(named, ast.JoinedStr) else [named]
        return "".join(_piece(piece, source) for piece in pieces)
    if isinstance(value, ast.Constant):
        return str(value.value)
    return _placeholder(value)


def _placeholder(value: ast.expr) -> str:
    name = _last_name(value).strip("_").lower()
    return "{" + (_CLEARER.get(name, name) or "…") + "}"


_CLEARER = {
    "attach_command": "command",
    "len": "number",
    "name__": "type",
    "splitlines": "reason",
    "strip": "part",
    "get": "value",
}


def _last_name(node: ast.AST) -> str:
    """`names` of `', '.join(names)`, `path` of `run.path`: the word that says most."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Call(func=ast.Attribute(attr="join")) if node.args:
            return _last_name(node.args[0])
        case ast.Call(func=ast.Name(id="str" | "map" | "sorted" | "min" | "max" | "_first_line" | "escape")) if (
            node.args
        ):
            return _last_name(node.args[-1])
        case ast.Call():
            return _last_name(node.func)
        case ast.BoolOp():
            return _last_name(node.values[0])
        case ast.Subscript() | ast.Starred():
            return _last_name(node.value)
        case ast.IfExp():
            return _last_name(node.body) or _last_name(node.orelse)
        case ast.BinOp():
            return _last_name(node.left)
        case ast.GeneratorExp() | ast.ListComp():
            return _last_name(node.generators[0].iter)
    return ""
