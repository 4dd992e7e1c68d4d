"""Extra states of Transformer Engine in files that hold them as bytes: their scales shown as tensors of their own."""

from __future__ import annotations

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import Store, short
from fp8debug.analysis.checkpoint.store.extra_state import LONGEST, is_extra_state, state_views
from fp8debug.analysis.checkpoint.store.strided import read_elements
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import Uint8Array


def unfold_extra_states(store: Store) -> Store:
    """The same checkpoint, with `fc1._extra_state#scale_fwd` and the like in the place of `fc1._extra_state`.

    Bytes that are none stay what they are, and become a problem. A checkpoint without any comes back as it is.
    """
    folded = {
        name: stored
        for name, stored in store.tensors.items()
        if stored.dtype == "U8" and len(stored.shape) == 1 and is_extra_state(name)
    }
    return _Unfolded(store, folded) if folded else store


class _Unfolded(Store):
    def __init__(self, store: Store, folded: dict[str, Stored]) -> None:
        self._store = store
        self._inner: dict[str, tuple[str, str]] = {}
        self.path, self.configs, self.metadata = store.path, store.configs, store.metadata
        problems = list(store.problems)
        tensors: dict[str, Stored] = {}
        for name, stored in store.tensors.items():
            tensors[name] = stored
            if name not in folded:
                continue
            try:
                views = state_views(store.whole(name).tobytes(), short(name)) if stored.n <= LONGEST else None
            except Fp8DebugError as error:
                problems.append(f"not read: {error}")
                continue
            if views is None:
                problems.append(f"not read: {short(name)} has {stored.n:,} bytes, and at most {LONGEST:,} are read")
                continue
            del tensors[name]
            for key, (view, _) in views.items():
                self._inner[f"{name}#{key}"] = name, key
                tensors[f"{name}#{key}"] = Stored(f"{name}#{key}", view.dtype, view.shape, stored.file)
        self.tensors, self.problems, self.lost = tensors, tuple(problems), store.lost

    def read(self, name: str, first: int, last: int) -> Uint8Array:
        """As in `Store`."""
        if name not in self._inner:
            return self._store.read(name, first, last)
        owner, key = self._inner[name]
        tensor = state_views(self._store.whole(owner).tobytes(), short(owner))[key][1]
        return read_elements(tensor, 0, tensor.n)[first:last]

    def close(self) -> None:
        """As in `Store`."""
        self._store.close()
