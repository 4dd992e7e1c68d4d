"""What is written is read by the library of the format."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors

from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.store.writing import WrittenTensor, write_safetensors, write_sharded
from fp8debug.errors import Fp8DebugError, UsageError

CODES = np.arange(21, dtype=np.uint8).reshape(3, 7)
HALF = np.linspace(-2, 2, 10, dtype=np.float32).reshape(5, 2).astype(ml_dtypes.bfloat16)
SCALES = np.array([[0.5, 2.0]], np.float64)


def tensors() -> list[WrittenTensor]:
    def rows() -> Iterator[bytes]:
        yield from (row.tobytes() for row in CODES)

    return [
        WrittenTensor("codes", "F8_E4M3", (3, 7), rows),
        WrittenTensor("half", "BF16", (5, 2), lambda: [HALF[:2], HALF[2:]]),
        WrittenTensor("scales", "F64", (1, 2), lambda: [SCALES]),
        WrittenTensor("nibbles", "F4", (2, 3), lambda: [b"\x21\x43", memoryview(b"\x05")]),
        WrittenTensor("empty", "F32", (0, 4), lambda: []),
        WrittenTensor("one", "F32", (), lambda: [np.array(3, np.float32)]),
    ]


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.safetensors"
    write_safetensors(path, tensors(), {"format": "pt", "ü": "\n"})
    with safetensors.safe_open(path, "np") as library:
        assert library.metadata() == {"format": "pt", "ü": "\n"}
        shapes = {name: library.get_slice(name).get_shape() for name in library.keys()}  # noqa: SIM118
        np.testing.assert_array_equal(library.get_tensor("half").astype(np.float32), HALF.astype(np.float32))
        np.testing.assert_array_equal(library.get_tensor("scales"), SCALES)
        assert library.get_tensor("one") == 3
    assert shapes == {
        "codes": [3, 7], "half": [5, 2], "scales": [1, 2], "nibbles": [2, 3], "empty": [0, 4], "one": []
    }  # fmt: skip
    content = path.read_bytes()
    assert content.endswith(CODES.tobytes() + b"\x21\x43\x05")
    assert struct.unpack("<Q", content[:8])[0] % 8 == 0
    assert [file.name for file in path.parent.iterdir()] == ["a.safetensors"]


def test_every_tensor_begins_at_a_multiple_of_its_element(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", tensors())
    with open_store(tmp_path) as store:
        places = {name: store._places[name][1] for name in store.tensors}  # type: ignore[attr-defined]
    assert places["scales"] % 8 == 0 and places["one"] % 4 == 0 and places["half"] % 2 == 0


def test_nothing_is_left_of_a_writing_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    wrong = [*tensors(), WrittenTensor("short", "U8", (4,), lambda: [b"123"])]
    with pytest.raises(ValueError, match="tensor short: got 3 bytes, expected 4"):
        write_safetensors(path, wrong)
    with pytest.raises(ValueError, match="expected each once"):
        write_safetensors(path, [*tensors(), *tensors()])
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.safetensors", b"old")]
    with pytest.raises(Fp8DebugError, match="cannot write"):
        write_safetensors(path / "below" / "b.safetensors", tensors())


def test_shards_and_their_index_are_read_back(tmp_path: Path) -> None:
    files = write_sharded(tmp_path / "m", tensors(), shard_bytes=40, metadata={"format": "pt"})
    assert [file.name for file in files] == [
        "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"
    ][: len(files)]  # fmt: skip
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 21 + 20 + 16 + 3 + 4
    assert {name: index["weight_map"][name] for name in ("codes", "half")} == {
        "codes": files[0].name,
        "half": files[1].name,
    }
    for file in files:
        with safetensors.safe_open(file, "np") as library:
            assert set(library.keys()) == {name for name, place in index["weight_map"].items() if place == file.name}
    with open_store(tmp_path / "m") as store:
        assert store.problems == () and store.whole("codes").tobytes() == CODES.tobytes()
        assert list(store.tensors) != [] and store.metadata == {"format": "pt"}


def test_one_file_needs_no_index_and_a_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    assert write_sharded(tmp_path, tensors()) == (tmp_path / "model.safetensors",)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    with pytest.raises(UsageError, match=r"holds a checkpoint already: model\.safetensors"):
        write_sharded(tmp_path, tensors())
