"""The stack machine that pickles are programs for, building records where it would import and call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from fp8debug.analysis.checkpoint.store.pickle_records import Call, Global, OddKey, Persistent

HIGHEST_PROTOCOL = 5
_DEEPEST_KEY, _LONGEST_KEY = 8, 1_000
"""Keys of dicts are texts, numbers and small tuples of these."""
_VALUES = (
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "FLOAT", "BINFLOAT",
)  # fmt: skip
"""Operations that put a value on the stack."""


class Machine:
    """Stack, memo and marks; values below the last mark are out of reach of the operations above it."""

    def __init__(self) -> None:
        self.stack: list[object] = []
        self.below: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.result: object = None

    def marked(self) -> list[object]:
        """What was put on the stack since the last mark, taken off with it."""
        values, self.stack = self.stack, self.below.pop()
        return values


def refuse(reason: str) -> NoReturn:
    raise ValueError(reason)


def _push(machine: Machine, argument: object) -> None:
    machine.stack.append(argument)


def _constant(value: object) -> Callable[[Machine, object], None]:
    return lambda machine, _: machine.stack.append(value)


def _made(make: Callable[[], object]) -> Callable[[Machine, object], None]:
    return lambda machine, _: machine.stack.append(make())


def _nothing(machine: Machine, argument: object) -> None:
    """Frames say nothing of values."""


def _protocol(machine: Machine, argument: object) -> None:
    if not isinstance(argument, int) or argument > HIGHEST_PROTOCOL:
        refuse(f"protocol {argument} is not known, {HIGHEST_PROTOCOL} is the highest")


def _stop(machine: Machine, argument: object) -> None:
    machine.result = machine.stack.pop()


def _mark(machine: Machine, argument: object) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


def _pop(machine: Machine, argument: object) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.marked()


def _pop_mark(machine: Machine, argument: object) -> None:
    machine.marked()


def _duplicate(machine: Machine, argument: object) -> None:
    machine.stack.append(machine.stack[-1])


def _tuple_of(n: int) -> Callable[[Machine, object], None]:
    def make(machine: Machine, argument: object) -> None:
        if len(machine.stack) < n:
            raise IndexError
        machine.stack[-n:] = [tuple(machine.stack[-n:])]

    return make


def _tuple(machine: Machine, argument: object) -> None:
    values = machine.marked()
    machine.stack.append(tuple(values))


def _list(machine: Machine, argument: object) -> None:
    values = machine.marked()
    machine.stack.append(values)


def _dict(machine: Machine, argument: object) -> None:
    values = machine.marked()
    made: dict[object, object] = {}
    _set_entries(made, values)
    machine.stack.append(made)


def _frozenset(machine: Machine, argument: object) -> None:
    values = machine.marked()
    machine.stack.append(frozenset(map(_key, values)))


def _append(machine: Machine, argument: object) -> None:
    value = machine.stack.pop()
    _extend(machine.stack[-1], [value])


def _appends(machine: Machine, argument: object) -> None:
    values = machine.marked()
    _extend(machine.stack[-1], values)


def _add_items(machine: Machine, argument: object) -> None:
    values = machine.marked()
    target = machine.stack[-1]
    if isinstance(target, set):
        target.update(map(_key, values))
    else:
        _extend(target, values)


def _set_item(machine: Machine, argument: object) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set_entries(machine.stack[-1], [key, value])


def _set_items(machine: Machine, argument: object) -> None:
    values = machine.marked()
    _set_entries(machine.stack[-1], values)


def _get(machine: Machine, argument: object) -> None:
    machine.stack.append(machine.memo[int(argument)])  # type: ignore[call-overload]


def _put(machine: Machine, argument: object) -> None:
    machine.memo[int(argument)] = machine.stack[-1]  # type: ignore[call-overload]


def _memoize(machine: Machine, argument: object) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _global(machine: Machine, argument: object) -> None:
    # genops joins the two lines with a blank; names of Python have none.
    module, _, name = str(argument).partition(" ")
    machine.stack.append(Global(module, name))


def _stack_global(machine: Machine, argument: object) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        refuse("a name to import is no text")
    machine.stack.append(Global(module, name))


def _call(machine: Machine, argument: object) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(Call(function, arguments))


def _call_named(machine: Machine, argument: object) -> None:
    named, arguments, function = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.stack.append(Call(function, arguments, entries=named if isinstance(named, dict) else None))


def _object(machine: Machine, argument: object) -> None:
    function, *arguments = machine.marked() or refuse("an object without a class")
    machine.stack.append(Call(function, tuple(arguments)))


def _instance(machine: Machine, argument: object) -> None:
    values = machine.marked()
    _global(machine, argument)
    machine.stack.append(Call(machine.stack.pop(), tuple(values)))


def _build(machine: Machine, argument: object) -> None:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if not isinstance(target, Call):
        refuse("a state is given to something that has none")
    target.state = state


def _persistent(machine: Machine, argument: object) -> None:
    machine.stack.append(Persistent(machine.stack.pop()))


def _extend(target: object, values: list[object]) -> None:
    if isinstance(target, Call):
        target.items = (target.items or []) + values
    elif isinstance(target, list):
        target.extend(values)
    else:
        refuse("something is appended to what is no list")


def _set_entries(target: object, pairs: list[object]) -> None:
    if isinstance(target, Call):
        target.entries = {} if target.entries is None else target.entries
    entries = target.entries if isinstance(target, Call) else target
    if not isinstance(entries, dict):
        refuse("an entry is set in what is no dict")
    if len(pairs) % 2:
        refuse("a key has no value")
    for at in range(0, len(pairs), 2):
        entries[_key(pairs[at])] = pairs[at + 1]


def _key(value: object) -> object:
    """A value that may be a key: anything that could not be hashed, or not in good time, is wrapped."""
    return value if _n_parts(value, _DEEPEST_KEY) <= _LONGEST_KEY else OddKey(value)


def _n_parts(value: object, depth: int) -> int:
    """Parts of a key; more than are allowed where it is none."""
    if value is None or isinstance(value, str | bytes | int | float | Global | Call | Persistent):
        return 1
    if not isinstance(value, tuple) or not depth or len(value) > _LONGEST_KEY:
        return _LONGEST_KEY + 1
    n = 1
    for part in value:
        n += _n_parts(part, depth - 1)
        if n > _LONGEST_KEY:
            break
    return n


ACTIONS: dict[str, Callable[[Machine, object], None]] = {
    **dict.fromkeys(_VALUES, _push),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": _made(list),
    "EMPTY_DICT": _made(dict),
    "EMPTY_SET": _made(set),
    "PROTO": _protocol,
    "FRAME": _nothing,
    "STOP": _stop,
    "MARK": _mark,
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": _duplicate,
    "TUPLE": _tuple,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "LIST": _list,
    "DICT": _dict,
    "FROZENSET": _frozenset,
    "APPEND": _append,
    "APPENDS": _appends,
    "ADDITEMS": _add_items,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _get),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    "MEMOIZE": _memoize,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _call),
    "NEWOBJ_EX": _call_named,
    "OBJ": _object,
    "INST": _instance,
    "BUILD": _build,
    "BINPERSID": _persistent,
}
