"""The extra state of Transformer Engine's modules: scales and histories of delayed scaling, pickled into bytes.

Of a module `fc1` a state dict has `fc1._extra_state`. Three ways of writing it are in use: a uint8 tensor of a pickle,
an io.BytesIO of torch.save (before 1.8), and an empty tensor or None where there is nothing to keep. `scale` is what
values are multiplied with before the cast, `scale_inv` (not written since 2.0) 1 / that; both forward ones have three
numbers a GEMM: input, weight, output; the backward ones two: gradient of the output, of the input.
"""

from __future__ import annotations

import numpy as np

from fp8debug.analysis.checkpoint.store.archive import Archive
from fp8debug.analysis.checkpoint.store.pickled import Call, interpret
from fp8debug.analysis.checkpoint.store.rebuilt import NoTensor, View, bytes_of, view_of
from fp8debug.analysis.checkpoint.store.strided import HeldBytes, Strided, read_elements
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import Float32Array, Uint8Array

ENDING = "_extra_state"
LONGEST = 64 << 20
"""Bytes of the longest one that is read; a history of 1,024 steps of one GEMM has 20 kB."""
TENSORS = (
    "scale_fwd", "scale_inv_fwd", "amax_history_fwd", "scale_bwd", "scale_inv_bwd", "amax_history_bwd",
)  # fmt: skip
_MODES = ("forward", "backward")
"""Keys of the operations of te.ops, which keep a state for each direction."""
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


def is_extra_state(name: str) -> bool:
    """Whether a tensor or an object of that name is one; sharded ones have a shard's number behind."""
    return any(part == ENDING for part in name.replace("/", ".").split("."))


def extra_state_tensors(raw: bytes, what: str = ENDING) -> dict[str, Float32Array]:
    """Scales and histories in the bytes of an extra state, nothing unpickled.

    Args:
        raw: the bytes of the uint8 tensor, or of the io.BytesIO.
        what: for errors.

    Returns:
        float32 arrays in the shapes they have, named as in TENSORS; none where nothing was kept.

    Raises:
        Fp8DebugError: the bytes are damaged, or are no extra state.
    """
    return {name: _values(*found) for name, found in state_views(raw, what).items()}


def state_views(raw: bytes, what: str, depth: int = 2) -> dict[str, tuple[View, Strided]]:
    """The same with dtypes and places.

    Raises:
        Fp8DebugError: the bytes are damaged, or are no extra state.
    """
    if not raw:
        return {}
    archive = None
    if raw.startswith(_ZIP):
        archive = Archive(HeldBytes(np.frombuffer(raw, np.uint8)), len(raw), what)
        root = archive.root
    elif raw.startswith(_PICKLE):
        root = interpret(raw, what)
    else:
        raise Fp8DebugError(
            f"{what} is not as Transformer Engine writes it: expected a pickle or an archive of torch.save"
        )
    if root is None:
        return {}
    inner = _bytes_in(root, archive, what)
    if inner is not None and not depth:
        raise Fp8DebugError(f"{what} is not as Transformer Engine writes it: bytes within bytes within bytes")
    if inner is not None:
        return state_views(inner, what, depth - 1)
    states = _states(root)
    if states is None:
        raise Fp8DebugError(f"{what} is not as Transformer Engine writes it: expected a dict in it")
    found: dict[str, tuple[View, Strided]] = {}
    for state in states:
        for name in TENSORS:
            strided = _strided(state.get(name), archive, f"{what}: {name}")
            if strided is not None:
                found[name] = strided
    return found


def _bytes_in(root: object, archive: Archive | None, what: str) -> bytes | None:
    """Bytes that were saved as an object or as a tensor of their own; None: it is neither."""
    raw = bytes_of(root)
    if raw is not None:
        return raw
    found = _strided(root, archive, what)
    return read_elements(found[1], 0, found[1].n).tobytes() if found and found[0].dtype == "U8" else None


def _states(root: object) -> list[dict[object, object]] | None:
    """The dict itself, and those of the two directions in it."""
    if isinstance(root, Call):
        root = root.entries
    if not isinstance(root, dict):
        return None
    inner = (root.get(mode) for mode in _MODES)
    return [root, *(state for state in inner if isinstance(state, dict))]


def _strided(value: object, archive: Archive | None, what: str) -> tuple[View, Strided] | None:
    try:
        view = view_of(value)
    except NoTensor as error:
        raise Fp8DebugError(f"{what} cannot be read: {error}") from error
    if view is None:
        return None
    if view.storage.held is None and archive is None:
        raise Fp8DebugError(f"{what} lies in another file, which is not known")
    held: Uint8Array
    if view.storage.held is not None:
        held = view.storage.held
    else:
        assert archive is not None
        held = archive.read_storage(view.storage.key, 0, archive.storage_size(view.storage.key))
    if view.needs > len(held):
        raise Fp8DebugError(f"{what} needs {view.needs:,} bytes and has {len(held):,}; write the checkpoint again")
    tensor = Strided(HeldBytes(held), view.itemsize, view.shape, view.strides, view.offset)
    if tensor.n * tensor.itemsize > LONGEST:
        raise Fp8DebugError(f"{what} has {tensor.n:,} numbers; expected a few for each GEMM and step")
    return view, tensor


def _values(view: View, strided: Strided) -> Float32Array:
    raw = np.ascontiguousarray(read_elements(strided, 0, strided.n))
    if view.dtype == "BF16":
        wide = raw.view("<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(view.shape)
    kind = {"F32": "<f4", "F64": "<f8", "F16": "<f2"}.get(view.dtype)
    if kind is None:
        raise Fp8DebugError(f"{ENDING} holds scales of dtype {view.dtype}; expected F32")
    with np.errstate(over="ignore"):
        return raw.view(kind).astype(np.float32).reshape(view.shape)
