"""What the user asked to run: a file, a module (`-m`), or a folder or archive that holds a `__main__.py`."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from typing import Literal

from fp8debug.errors import Fp8DebugError, UsageError, nearest

_SCRIPT_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz", ".zip")


class NotRunnable(Fp8DebugError):
    """There is nothing to run, as `python` would say too."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to run."""

    given: str
    """As the user wrote it: a path or a dotted module name."""
    kind: Literal["file", "module", "container"]
    """A container is a folder or an archive that holds a `__main__.py`."""

    @property
    def title(self) -> str:
        """A short name for a run of it, such as `train.py`."""
        if self.kind == "module":
            return self.given.removesuffix(".__main__").rpartition(".")[2]
        return os.path.basename(os.path.abspath(self.given))


def find_target(given: str, *, module: bool) -> Target:
    """Look for the program without importing or running any of it.

    Raises:
        UsageError: no such file, with the nearest names.
        NotRunnable: no such top-level module.
    """
    if module:
        top = given.partition(".")[0]
        if not _is_module(top):
            near = _suggest(top, [found.name for found in pkgutil.iter_modules([os.getcwd()])])
            raise NotRunnable(f"no module named {top!r}{near}; expected a module's name after -m")
        return Target(given, "module")
    if os.path.isfile(given):
        # The same question that the interpreter asks to tell an archive from a script.
        archive = pkgutil.get_importer(os.path.abspath(given)) is not None
        return Target(given, "container" if archive else "file")
    if os.path.isdir(given):
        return Target(given, "container")
    if given.isdigit():
        raise UsageError(
            f"attach takes a script, got {given}, which is no file; to watch a running process call "
            "fp8debug.attach(model) in it"
        )
    hint = f", or -m {given} to run the module" if given.isidentifier() and _is_module(given) else ""
    raise UsageError(f"no such script: {given}{_suggest(given, _scripts_near(given))}; expected a file to run{hint}")


def container_spec(folder: str, given: str) -> ModuleSpec:
    """The `__main__` inside the folder or archive at the path `folder`.

    Raises:
        NotRunnable: it holds none.
    """
    spec = PathFinder.find_spec("__main__", [folder])
    if spec is None:
        raise NotRunnable(f"cannot find a __main__.py in {given}; expected a script, or a folder or archive with one")
    return spec


def module_spec(name: str) -> ModuleSpec:
    """What `-m name` runs: the module, or a package's `__main__`. Imports the parent packages.

    Raises:
        NotRunnable: no such module, or a package without a `__main__`.
        Exception: whatever a parent package raises.
    """
    _import_parent(name)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise NotRunnable(f"cannot find the module {name!r}: {type(error).__name__}: {error}") from error
    if spec is None:
        raise NotRunnable(f"no module named {name!r}; expected a module's name after -m")
    if spec.submodule_search_locations is None:
        return spec
    if name.rpartition(".")[2] == "__main__":
        raise NotRunnable(f"{name!r} is a package; expected a module's name after -m")
    try:
        return module_spec(f"{name}.__main__")
    except NotRunnable as error:
        raise NotRunnable(f"{name!r} is a package without a __main__ module: it cannot be run with -m") from error


def _import_parent(name: str) -> None:
    parent = name.rpartition(".")[0]
    if not parent:
        return
    try:
        __import__(parent)  # not import_module, which would stand in the traceback of a package that fails
    except ImportError as error:
        # One that fails deeper inside is the program's own error; a missing parent is reported by the caller.
        if error.name is None or not f"{parent}.".startswith(f"{error.name}."):
            raise
    existing = sys.modules.get(name)
    if existing is not None and not hasattr(existing, "__path__"):
        warnings.warn(
            f"{name!r} found in sys.modules after import of package {parent!r}, but prior to execution of {name!r}; "
            "this may result in unpredictable behaviour",
            RuntimeWarning,
            stacklevel=1,
        )


def _is_module(top: str) -> bool:
    """Whether a top-level module of that name exists, seen from the current folder."""
    try:
        return PathFinder.find_spec(top, [os.getcwd()]) is not None or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _scripts_near(given: str) -> list[str]:
    folder = os.path.dirname(given)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(_SCRIPT_SUFFIXES)]


def _suggest(word: str, known: Sequence[str]) -> str:
    near = nearest(word, known)
    return f" (nearest: {', '.join(near)})" if near else ""
