"""A program cannot tell `fp8debug attach` from `python`: both are run and everything that can be seen is compared."""

from __future__ import annotations

import json
import py_compile
import re
import zipfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Place

PROBE = '''"""A docstring."""
import json, os, signal, sys

main = sys.modules["__main__"]
spec = __spec__
print(json.dumps({
    "argv": sys.argv,
    "path[0]": sys.path[0],
    "name": __name__,
    "file": __file__,
    "doc": __doc__,
    "package": __package__,
    "cached": __cached__,
    "loader": [type(__loader__).__name__, getattr(__loader__, "name", None), getattr(__loader__, "path", None)],
    "builtins": type(__builtins__).__name__,
    "annotations": __annotations__,
    "spec": spec and [spec.name, spec.origin, spec.parent, spec.cached, spec.has_location],
    "is main": main.__dict__ is globals(),
    "names": sorted(n for n in globals() if n.startswith("__")),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}))
'''


@pytest.fixture
def programs(place: Place) -> Place:
    """The probe as a script, a package, a module, a folder, an archive, byte code, and behind a link."""
    place.write("probe.py", PROBE)
    place.write("deep/er/probe.py", PROBE)
    place.write("package/__init__.py", "import sys; print('parent', sys.argv, sys.path[0])")
    place.write("package/__main__.py", PROBE)
    place.write("package/module.py", PROBE)
    place.write("folder/__main__.py", PROBE)
    with zipfile.ZipFile(place.folder / "archive.pyz", "w") as archive:
        archive.writestr("__main__.py", PROBE)
    py_compile.compile(str(place.folder / "probe.py"), cfile=str(place.folder / "compiled.pyc"))
    (place.folder / "link.py").symlink_to("deep/er/probe.py")
    return place


TARGETS = {
    "script": ["probe.py", "a", "b c", ""],
    "script in a folder": ["deep/er/probe.py"],
    "script by a crooked path": ["./deep/../probe.py"],
    "script behind a link": ["link.py", "x"],
    "byte code": ["compiled.pyc", "x"],
    "folder": ["folder", "x"],
    "archive": ["archive.pyz", "x"],
    "module": ["-m", "probe", "x"],
    "package": ["-m", "package", "--help", "-m"],
    "module in a package": ["-m", "package.module", "x"],
}


@pytest.mark.parametrize("command", TARGETS.values(), ids=TARGETS)
def test_program_sees_what_python_shows_it(programs: Place, command: list[str]) -> None:
    expected = programs.python(*command)
    assert expected.code == 0, expected.err.decode()
    assert programs.attach(*command) == expected
    assert programs.calls()[-1] == ["close", "closed", None]


@pytest.mark.parametrize("command", [["probe.py"], ["folder"]], ids=["script", "folder"])
def test_isolated_interpreter_adds_no_path_entry(programs: Place, command: list[str]) -> None:
    assert programs.attach(*command, interpreter=["-I"]) == programs.python("-I", *command)


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_arguments_are_the_programs_verbatim(programs: Place, module: bool) -> None:
    arguments = ["--help", "--layers", "x", "-q", "--", "-m", "--version", "--every=3", "--no-such-option"]
    command = ["-m", "probe", *arguments] if module else ["probe.py", *arguments]
    ran = programs.attach(*command)
    assert ran == programs.python(*command)
    assert json.loads(ran.out)["argv"][1:] == arguments


def test_one_double_dash_before_the_script_is_dropped(programs: Place) -> None:
    ran = programs.attach("--every", "3", "--", "probe.py", "--", "x")
    assert json.loads(ran.out)["argv"] == ["probe.py", "--", "x"]


CLOSED = ["closed", None]
ENDINGS = {
    "runs to its end": ("print('out'); import sys; print('err', file=sys.stderr)", CLOSED),
    "exit 0": ("import sys; sys.exit(0)", CLOSED),
    "exit None": ("import sys; sys.exit()", CLOSED),
    "exit 3": ("import sys; sys.exit(3)", ["failed", "exit code 3"]),
    "exit -1": ("import sys; sys.exit(-1)", ["failed", "exit code -1"]),
    "exit text": ("import sys; sys.exit('no data')", ["failed", "no data"]),
    "exit object": ("raise SystemExit([1, 2])", ["failed", "[1, 2]"]),
    "exception": ("def f():\n    return 1 / 0\n\nf()\n", ["failed", "ZeroDivisionError: division by zero"]),
    "exception with cause": (
        "def f():\n    try:\n        {}['a']\n    except KeyError as e:\n        raise ValueError('b') from e\n\nf()\n",
        ["failed", "ValueError: b"],
    ),
    "exception while handling": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    undefined\n",
        ["failed", "NameError: name 'undefined' is not defined"],
    ),
    "base exception": ("class Stop(BaseException):\n    pass\n\nraise Stop('now')\n", ["failed", "Stop: now"]),
    "keyboard interrupt": ("def f():\n    raise KeyboardInterrupt\n\nf()\n", ["interrupted", "KeyboardInterrupt"]),
    "error of ours": (
        "from fp8debug.errors import UsageError\nraise UsageError('of the script')\n",
        ["failed", "fp8debug.errors.UsageError: of the script"],
    ),
    "syntax error": ("print('never')\nx = (1,\n", ["failed", "SyntaxError: '(' was never closed"]),
    "encoding": ("# -*- coding: latin-1 -*-\nprint(len('\xe4'))\n", CLOSED),
    "own excepthook": (
        "import sys, traceback\ndef hook(kind, error, trace):\n"
        "    print('mine', kind.__name__, len(traceback.extract_tb(trace)))\nsys.excepthook = hook\n1 / 0\n",
        ["failed", "ZeroDivisionError: division by zero"],
    ),
    "excepthook that exits": (
        "import sys\nsys.excepthook = lambda *_: sys.exit(9)\n1 / 0\n",
        ["failed", "ZeroDivisionError: division by zero"],
    ),
    "exit handlers and threads": (
        "import atexit, sys, threading, time\natexit.register(lambda: print('exit handler', sys.argv))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread', __name__))).start()\nprint('end')\n",
        CLOSED,
    ),
    "exit handlers after an exception": (
        "import atexit, sys\natexit.register(lambda: print(sys.last_value, sys.last_traceback.tb_lineno))\n1 / 0\n",
        ["failed", "ZeroDivisionError: division by zero"],
    ),
    "stdout closed": ("import os\nos.close(1)\n", CLOSED),
}


@pytest.mark.parametrize(("source", "told"), ENDINGS.values(), ids=ENDINGS)
def test_program_ends_as_under_python_and_the_hooks_learn_how(
    place: Place, source: str, told: list[str | None]
) -> None:
    place.write("program.py", source)
    expected = place.python("program.py", "a")
    assert place.attach("program.py", "a") == expected
    assert place.calls()[-1] == ["close", *told]


def test_os_exit_is_left_alone(place: Place) -> None:
    place.write("program.py", "import os; os._exit(5)")
    assert place.attach("program.py") == place.python("program.py")
    assert [call[0] for call in place.calls()] == ["init", "start"]


def test_excepthook_that_fails_shows_both_errors(place: Place) -> None:
    place.write("program.py", "import sys\ndef hook(*_):\n    raise KeyError('hook')\nsys.excepthook = hook\n1 / 0\n")
    expected, ran = place.python("program.py"), place.attach("program.py")
    assert ran.code == expected.code == 1
    original = expected.err[expected.err.index(b"Original exception was:") :]
    assert b"KeyError: 'hook'" in ran.err
    assert ran.err.endswith(original)


FAILING_MODULES = {
    "in the module": ("package/module.py", "1 / 0\n"),
    "in its package": ("package/__init__.py", "def f():\n    raise ValueError('x')\n\nf()\n"),
    "an import in its package": ("package/__init__.py", "import no_such_module\n"),
    "syntax of the module": ("package/module.py", "x = (\n"),
}


@pytest.mark.parametrize("failing", FAILING_MODULES.values(), ids=FAILING_MODULES)
def test_module_that_fails_shows_its_own_frames(place: Place, failing: tuple[str, str]) -> None:
    place.write("package/__init__.py", "")
    place.write("package/module.py", "print('ran')\n")
    place.write(*failing)
    expected = place.python("-m", "package.module")
    ran = place.attach("-m", "package.module")
    assert (ran.code, ran.out) == (expected.code, expected.out) == (1, b"")
    assert ran.err == re.sub(rb'  File "<frozen runpy>".*\n', b"", expected.err)


def test_module_imported_by_its_own_package_warns_as_python_does(place: Place) -> None:
    place.write("package/__init__.py", "import package.module\n")
    place.write("package/module.py", "print(__name__)\n")
    expected, ran = place.python("-m", "package.module"), place.attach("-m", "package.module")
    assert ran.out == expected.out == b"package.module\n__main__\n"
    message = re.search(rb"RuntimeWarning: .*", expected.err)
    assert message is not None
    assert message[0] in ran.err


def test_objects_of_main_are_pickled_and_spawned(place: Place) -> None:
    place.write(
        "program.py",
        """
import multiprocessing, pickle
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def double(point):
    return Point(2 * point.x), __name__

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [Point(3)]))
""",
    )
    ran = place.attach("program.py")
    assert ran == place.python("program.py")
    assert ran.out == b"[(Point(x=6), '__mp_main__')]\n"


def test_fork_that_falls_out_of_the_script_leaves_the_run_to_its_parent(place: Place) -> None:
    place.write("program.py", "import os\nif os.fork():\n    os.wait()\n    print('parent')\n")
    ran = place.attach("program.py", quiet=False, FAKE_RECORDS="2")
    assert ran.code == 0
    assert ran.err.count(b"recorded 2 tensors") == 1
    assert [call[0] for call in place.calls()] == ["init", "start", "close"]


def test_missing_submodule_is_one_line(place: Place) -> None:
    place.write("package/__init__.py", "")
    ran = place.attach("-m", "package.other")
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err == b"fp8debug: no module named 'package.other'; expected a module's name after -m\n"
