"""Files of torch.save: .pt, .pth and .bin, read without torch and without unpickling."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fp8debug.analysis.checkpoint.store.archive import Archive
from fp8debug.analysis.checkpoint.store.base import Store
from fp8debug.analysis.checkpoint.store.files import ByteFiles, stamp_of
from fp8debug.analysis.checkpoint.store.flattened import flatten, sentences
from fp8debug.analysis.checkpoint.store.pieces import PiecedStore
from fp8debug.analysis.checkpoint.store.placing import placed
from fp8debug.analysis.checkpoint.store.strided import FileBytes
from fp8debug.analysis.checkpoint.store.unfolding import unfold_extra_states
from fp8debug.errors import Fp8DebugError

_ZIP = b"PK"
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""A pickle of the number that torch.save's older format begins with."""
_NEW = "load it where it was written and write it again: torch.save(torch.load(FILE, weights_only=True), NEW_FILE)"


def open_torch_file(path: str | Path, configs: Mapping[str, Mapping[str, Any]] | None = None) -> Store:
    """Open a file of torch.save; its pickle is read as data, the bytes of its tensors when they are asked for.

    Args:
        path: the file.
        configs: JSON files beside it, see `Store`.

    Raises:
        Fp8DebugError: it is none, is damaged, or holds no tensors of a model.
    """
    path, files = Path(path), ByteFiles()
    with ExitStack() as on_errors:
        on_errors.callback(files.close)
        archive = Archive(FileBytes(files, path, 0), _check(path, files), str(path))
        flat = flatten(archive.root, str(path))
        tensors, problems = list(placed(flat, archive, path.name)), sentences(flat)
        if not tensors:
            raise Fp8DebugError(
                f"{path} holds no tensors of a model; expected a state dict, as torch.save(model.state_dict(), FILE) "
                f"writes it{''.join(f'; {problem}' for problem in problems[:3])}"
            )
        store = unfold_extra_states(PiecedStore(path, tensors, configs or {}, problems, files))
        on_errors.pop_all()
    return store


def _check(path: Path, files: ByteFiles) -> int:
    """Size of a file that begins as it should."""
    try:
        with path.open("rb") as opened:
            files.stamps[path] = stamp_of(opened.fileno())
            beginning = opened.read(len(_LEGACY))
    except OSError as error:
        raise Fp8DebugError(f"cannot read {path}: {error.strerror or error}") from error
    if beginning.startswith(_LEGACY):
        raise Fp8DebugError(f"{path} is of torch.save's format before PyTorch 1.6, which is not read; {_NEW}")
    if not beginning.startswith(_ZIP):
        kind = "a pickle without an archive" if beginning.startswith(b"\x80") else "no zip archive"
        raise Fp8DebugError(f"{path} is {kind}; expected a file of torch.save, PyTorch 1.6 or later; {_NEW}")
    return files.stamps[path][0]
