"""Files as bytes, right and wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Raw = Callable[..., Path]


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    """A file of the length of a header, the header (an object as JSON, bytes as they are), and bytes of tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    """`raw(header, data, name="a.safetensors")`: the path of such a file below the temporary folder."""

    def write(header: Any, data: bytes = b"", name: str = "a.safetensors") -> Path:
        return raw_file(tmp_path / name, header, data)

    return write
