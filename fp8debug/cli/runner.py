"""Run a program in this process as `python` itself would.

The program gets its own `__main__` module, `sys.argv` and `sys.path[0]`. What it raises comes out unchanged, and the
interpreter does what it always does with it: exit codes, messages of `sys.exit`, death by SIGINT. Only the traceback
is cut, by a `sys.excepthook` that is put in place for that one moment, so that it starts in the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from fp8debug.cli.targets import NotRunnable, Target, container_spec, module_spec

_OWN_MODULES = (__name__, "fp8debug.cli.targets")
# Stand between the script and torch where they wrap an entry point.
_WRAPPERS = ("fp8debug.hooks.stepping", "fp8debug.hooks.training")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program ready to run: its code, and the module that it becomes."""

    code: CodeType
    module: ModuleType


def load(target: Target, arguments: Sequence[str]) -> Loaded:
    """Set `sys.argv` and `sys.path[0]` and compile the program; a module's parent packages are imported.

    Raises:
        NotRunnable: the file cannot be read, the module or the `__main__.py` is missing.
        Exception: SyntaxError, and whatever a parent package raises.
    """
    # While its parent packages are imported, a module's file is not known yet: Python shows them "-m".
    sys.argv[:] = ["-m" if target.kind == "module" else target.given, *arguments]
    _set_first_path(target)
    if target.kind == "file":
        return _load_file(target.given)
    if target.kind == "container":
        return _load_spec(container_spec(sys.path[0], target.given))
    loaded = _load_spec(module_spec(target.given))
    sys.argv[0] = str(loaded.module.__file__)
    return loaded


def run(loaded: Loaded) -> None:
    """Run it as `__main__`, which stays in place afterwards: threads, exit handlers and pickles still need it."""
    sys.modules["__main__"] = loaded.module
    if "__mp_main__" in sys.modules:  # the name that spawned processes give it, taken when multiprocessing was imported
        sys.modules["__mp_main__"] = loaded.module
    exec(loaded.code, loaded.module.__dict__)


def hide_own_frames(afterwards: Callable[[], None]) -> None:
    """Have the exception on its way out shown as if we were not there; then call `afterwards`."""
    shown_by = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = shown_by
        error.__traceback__ = _in_program(trace)
        sys.last_traceback = error.__traceback__
        try:
            shown_by(kind, error, error.__traceback__)
        finally:
            afterwards()

    sys.excepthook = hook


def _in_program(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the program, without our wrappers; all when it never got there."""
    entry = trace
    while entry is not None and not _is_own(entry):
        entry = entry.tb_next
    if entry is None:
        return trace
    while entry is not None and _is_own(entry):
        entry = entry.tb_next
    last = entry
    while last is not None:
        while last.tb_next is not None and last.tb_next.tb_frame.f_globals.get("__name__") in _WRAPPERS:
            last.tb_next = last.tb_next.tb_next
        last = last.tb_next
    return entry


def _is_own(entry: TracebackType) -> bool:
    return entry.tb_frame.f_globals.get("__name__") in _OWN_MODULES


def _set_first_path(target: Target) -> None:
    if target.kind == "container":
        first = os.path.join(os.getcwd(), target.given)
    elif target.kind == "module":
        first = os.getcwd()
    else:
        first = os.path.dirname(os.path.realpath(target.given))
    # Under -P, -I or PYTHONSAFEPATH the interpreter adds no entry, neither for our own start nor for a script.
    if not (sys.flags.isolated or sys.flags.safe_path):
        sys.path[0] = first
    elif target.kind == "container":
        sys.path.insert(0, first)


def _load_file(given: str) -> Loaded:
    path = os.path.join(os.getcwd(), given)
    if path.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", path)
        code = compiled.get_code("__main__")
        assert code is not None  # it raises ImportError for what is not byte code
        return Loaded(code, _main_module(path, compiled, None))
    source = compile(_read(path), path, "exec", dont_inherit=True)
    return Loaded(source, _main_module(path, SourceFileLoader("__main__", path), None))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise NotRunnable(f"cannot read {path}: {error.strerror}; expected a script to run") from error


def _load_spec(spec: ModuleSpec) -> Loaded:
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise NotRunnable(f"{spec.name!r} holds no Python code ({type(loader).__name__}); expected a Python module")
    return Loaded(code, _main_module(spec.origin, loader, spec))


def _main_module(path: str | None, loader: object, spec: ModuleSpec | None) -> ModuleType:
    module = ModuleType("__main__")
    names: dict[str, object] = {
        "__builtins__": sys.modules["builtins"],
        "__cached__": spec.cached if spec else None,
        "__file__": path,
        "__loader__": loader,
        "__package__": spec.parent if spec else None,
        "__spec__": spec,
    }
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    module.__dict__.update(names)
    return module
