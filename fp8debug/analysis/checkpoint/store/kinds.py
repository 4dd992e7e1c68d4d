"""What a file is by its first bytes, where it is no safetensors file: so that a sentence can say it."""

from __future__ import annotations

from pathlib import Path

_BEGINNINGS = {
    b"version https://git-lfs": "a pointer of Git LFS, not the file itself: fetch it with git lfs pull",
    b"PK\x03\x04": "a zip archive, as torch.save writes them: name it .pt to have it read as such",
    b"\x80\x02": "a pickle, as torch.save wrote them: name it .pt to have it read as such",
    b"GGUF": "a GGUF file, which is not read here; give the safetensors files that it was made of",
    b"\x89HDF": "an HDF5 file, which is not read here",
    b"\x93NUMPY": "an array of NumPy, which is not read here",
    b"PAR1": "a Parquet file; give a checkpoint",
    b"<!DOCTYPE": "a page of HTML, perhaps the message of a server in the place of the file: fetch it again",
    b"<html": "a page of HTML, perhaps the message of a server in the place of the file: fetch it again",
    b"\x1f\x8b": "a gzip file: unpack it first",
    b"\x28\xb5\x2f\xfd": "a Zstandard file: unpack it first",
}
_SAFETENSORS_BRACE = 8
"""Where the header of a safetensors file begins, with a brace."""


def other_kind(beginning: bytes) -> str | None:
    """What else a file is that begins like this; None: it may be a safetensors file, or nothing that is known."""
    if beginning[_SAFETENSORS_BRACE : _SAFETENSORS_BRACE + 1] == b"{":
        return None
    return next((kind for sign, kind in _BEGINNINGS.items() if beginning.startswith(sign)), None)


def begins_as_torch_file(path: Path) -> bool:
    """Whether a file begins as those of torch.save do, with a zip archive or a pickle; False where it is unreadable."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_SAFETENSORS_BRACE + 1)
    except OSError:
        return False
    return beginning[_SAFETENSORS_BRACE:] != b"{"
