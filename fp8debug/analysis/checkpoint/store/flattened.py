"""State dicts flattened: dicts of dicts of tensors as names with dots, everything that is no weight set apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fp8debug.analysis.checkpoint.store.base import short
from fp8debug.analysis.checkpoint.store.documents import is_text
from fp8debug.analysis.checkpoint.store.extra_state import is_extra_state
from fp8debug.analysis.checkpoint.store.pickled import Call
from fp8debug.analysis.checkpoint.store.rebuilt import NoTensor, View, bytes_of
from fp8debug.analysis.checkpoint.store.subclasses import class_of, parts_of
from fp8debug.errors import Fp8DebugError, escape, some

_DEEPEST = 32
_PLAIN_CLASSES = ("torch.Size", "torch.device", "torch.serialization._get_layout")
_MOST_VALUES = 2_000_000
_LARGEST_KEY = 10**18
_DICTS = ("collections.OrderedDict", "collections.defaultdict", "collections.Counter")
_OPTIMIZERS = (
    "optimizer", "optimizers", "optim", "opt", "optimizer_state_dict", "optimizer_states", "optimizer_state",
    "optim_state", "optim_state_dict", "opt_state", "lr_scheduler", "lr_schedulers", "scheduler",
)  # fmt: skip
_MOMENTS = (
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta",
    "fp32_param",
)  # fmt: skip
"""What optimizers call their tensors; none is a name of a layer."""


@dataclass(slots=True)
class Flattened:
    """What a state dict holds."""

    tensors: dict[str, dict[str, View]] = field(default_factory=dict)
    """Of each name its parts, see `subclasses`."""
    extra_states: dict[str, bytes] = field(default_factory=dict)
    """Those that are bytes in the pickle; those that are tensors are among the tensors."""
    n_training: int = 0
    """Tensors of optimizers."""
    unread: dict[str, str] = field(default_factory=dict)
    """Why something that may be a tensor is not read, by name."""
    others: dict[str, str] = field(default_factory=dict)
    """What values are that are no tensors, by the outermost name: the name of a class, or that of a Python type."""


def is_training_state(name: str) -> bool:
    """Whether a tensor belongs to an optimizer or a generator of random numbers, not to the model."""
    parts = name.split(".")
    is_optimizers = parts[0] in _OPTIMIZERS or "optimizer" in parts[:2]
    return is_optimizers or any(part in _MOMENTS or part.endswith("rng_state") for part in parts)


def flatten(root: object, what: str) -> Flattened:
    """Take a state dict apart.

    Raises:
        Fp8DebugError: it has more values than any model has, or is nested deeper.
    """
    flat = Flattened()
    for name, value in _Leaves(what).of(root, "", _DEEPEST):
        if not is_text(name):
            raise Fp8DebugError(f"{what} is damaged: a name in it, {escape(short(name))}, holds half a character")
        _sort(flat, name or "tensor", value)
    return flat


def training_left_out(n: int) -> str:
    """A sentence about tensors that are no weights."""
    return f"left out: {n:,} tensor{'s' if n != 1 else ''} of the optimizer or of random numbers"


def sentences(flat: Flattened) -> list[str]:
    """What was left out of it."""
    told = []
    if flat.n_training:
        told.append(training_left_out(flat.n_training))
    for reason in dict.fromkeys(flat.unread.values()):
        names = [short(name) for name, why in flat.unread.items() if why == reason]
        told.append(f"not read: {some(names)}: {escape(reason)}")
    classes = {name: kind for name, kind in flat.others.items() if "." in kind and kind not in _PLAIN_CLASSES}
    for kind in dict.fromkeys(classes.values()):
        names = [short(name) for name, its in classes.items() if its == kind]
        told.append(f"not read: {some(names)}: {'a value' if len(names) == 1 else 'values'} of {escape(kind[:200])}")
    plain = [short(name) for name in flat.others if name not in classes]
    if plain:
        told.append(f"left out, no tensors: {some(plain)}")
    return told


class _Leaves:
    """Values that are no containers, by their names; the containers of a pickle may hold each other."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._n = 0

    def of(self, value: object, name: str, depth: int) -> Iterator[tuple[str, object]]:
        self._n += 1
        if self._n > _MOST_VALUES:
            raise Fp8DebugError(f"{self._what} describes more than {_MOST_VALUES:,} values; expected a state dict")
        entries = _entries(value)
        if entries is None:
            yield name, value
            return
        if not depth:
            raise Fp8DebugError(
                f"{self._what} is nested deeper than {_DEEPEST} dicts at {short(name)}; expected a state dict"
            )
        for key, inner in entries:
            yield from self.of(inner, f"{name}.{key}" if name else key, depth - 1)


def _is_key(key: object) -> bool:
    return isinstance(key, str) or (isinstance(key, int) and abs(key) < _LARGEST_KEY)


def _entries(value: object) -> list[tuple[str, object]] | None:
    """What a container holds; None: it is none, or one of nothing but numbers and texts."""
    if isinstance(value, Call) and isinstance(value.state, dict) and "_modules" in value.state:
        return _of_module(value.state)
    named = _named(value)
    if named is not None:
        return named
    if isinstance(value, list | tuple) and any(isinstance(one, Call | dict | list) for one in value):
        return [(str(at), inner) for at, inner in enumerate(value)]
    return None


def _named(value: object) -> list[tuple[str, object]] | None:
    """What a dict holds; None: it is none."""
    if isinstance(value, Call) and value.path in _DICTS:
        value = value.entries or {}
    if isinstance(value, dict):
        return [(str(key), inner) for key, inner in value.items() if _is_key(key)]
    return None


def _of_module(state: dict[object, object]) -> list[tuple[str, object]]:
    """Parameters, buffers and inner modules of a module that was saved whole."""
    return [
        entry
        for group in ("_parameters", "_buffers", "_modules")
        for entry in _named(state.get(group)) or []
        if entry[1] is not None
    ]


def _sort(flat: Flattened, name: str, value: object) -> None:
    if is_extra_state(name):
        raw = bytes_of(value)
        if raw is not None:
            flat.extra_states[name] = raw
            return
    try:
        parts = parts_of(value)
    except NoTensor as error:
        flat.unread[name] = str(error)
        return
    if parts is None:
        if value is not None and not is_training_state(name):
            flat.others[name] = class_of(value)
    elif is_training_state(name):
        flat.n_training += 1
    elif name in flat.tensors:
        flat.unread[name] = "two tensors have this name"
    else:
        flat.tensors[name] = parts
