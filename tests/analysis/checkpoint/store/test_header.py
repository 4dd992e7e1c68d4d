"""Headers of safetensors files, right ones and those of strangers."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors

from fp8debug.analysis.checkpoint.store.base import BITS
from fp8debug.analysis.checkpoint.store.header import read_header
from fp8debug.errors import Fp8DebugError

Raw = Callable[..., Path]
Written = Callable[..., Path]


def declared(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def refused(path: Path) -> str:
    with pytest.raises(Fp8DebugError) as caught:
        read_header(path, path.name)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 1500
    return message


def test_a_file_of_the_library_is_read_as_it_declares_it(written: Written) -> None:
    folder = written(
        {"w": ("F8_E4M3", np.zeros((3, 4), np.uint8)), "s": ("F32", np.ones(())), "e": ("BF16", np.ones((0, 5)))},
        metadata={"format": "pt"},
    )
    header = read_header(folder / "model.safetensors", "model.safetensors")
    got = {name: (stored.dtype, stored.shape, stored.file) for name, stored in header.tensors.items()}
    assert got == {
        "w": ("F8_E4M3", (3, 4), "model.safetensors"),
        "s": ("F32", (), "model.safetensors"),
        "e": ("BF16", (0, 5), "model.safetensors"),
    }
    content = (folder / "model.safetensors").read_bytes()
    assert content[header.starts["s"] : header.starts["s"] + 4] == struct.pack("<f", 1.0)
    assert header.metadata == {"format": "pt"} and header.problems == ()


def test_codes_smaller_than_a_byte_are_counted_as_the_library_counts_them(tmp_path: Path) -> None:
    data = np.zeros(12, np.uint8)
    spec = safetensors.TensorSpec(dtype="float4_e2m1fn_x2", shape=[4, 3], data_ptr=data.ctypes.data, data_len=12)
    safetensors.serialize_file({"a": spec}, tmp_path / "a.safetensors", None)
    stored = read_header(tmp_path / "a.safetensors", "a").tensors["a"]
    assert (stored.dtype, stored.shape) == ("F4", (4, 6))


def test_six_bits_are_read_by_the_library_in_as_many_bytes(raw: Raw) -> None:
    path = raw({"a": declared("F6_E3M2", [2, 4], [0, 6])}, bytes(6))
    with safetensors.safe_open(path, "np") as library:
        assert library.get_slice("a").get_shape() == [2, 4]
    assert read_header(path, "a").tensors["a"].shape == (2, 4)


def test_bits_of_dtypes_are_those_that_ml_dtypes_and_numpy_have() -> None:
    types = {
        "F64": np.float64, "I64": np.int64, "U64": np.uint64, "C64": np.complex64, "F32": np.float32, "I32": np.int32,
        "U32": np.uint32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I16": np.int16, "U16": np.uint16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "U8": np.uint8, "I8": np.int8,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu, "BOOL": np.bool_,
    }  # fmt: skip
    assert {name: np.dtype(kind).itemsize * 8 for name, kind in types.items()} | {
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "F4": 4,
    } == BITS


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has 0 bytes, and 8 give the length"),
        (b"1234567", "it has 7 bytes"),
        (struct.pack("<Q", 1 << 63) + b"{}", "its header has 9,223,372,036,854,775,808 bytes; expected at most 100,0"),
        (struct.pack("<Q", 50) + b'{"a":', "its header should have 50 bytes, and 5 are there"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4", "git lfs pull"),
        (b"PK\x03\x04" + bytes(50), "torch.save"),
        (b"GGUF" + bytes(50), "GGUF"),
        (b"<!DOCTYPE html><title>404</title>", "HTML"),
    ],
)
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    message = refused(path)
    assert said in message and str(path) in message


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"\xff\xfe{}", "byte 0 is no UTF-8"),
        (b"{'a': 1}", "is no JSON (Expecting property name"),
        (b"[" * 5000, "nested too deep"),
        (b'{"a":' * 5000, "nested too deep"),
        (b'{"a": NaN}', "says NaN"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is no JSON"),
        (b"[]", "its header is a list; expected an object"),
        (b"null", "its header is null"),
        ({"a": None}, "tensor a is declared as null"),
        ({"a": {"dtype": "F32"}}, "has no shape and no data_offsets"),
        ({"a": declared(dtype=5)}, "has a whole number for a dtype"),
        (b'{"a": {"dtype": "F32", "dtype": "BF16", "shape": [], "data_offsets": [0, 4]}}', "has dtype twice"),
        ({"a": declared(shape=[-1])}, "a shape that none can have: [-1]"),
        ({"a": declared(shape=[True, 2])}, "[True, 2]"),
        ({"a": declared(shape=[2.0])}, "[2.0]"),
        ({"a": declared(shape="22")}, "a shape that none can have: a text"),
        ({"a": declared(shape={"0": 2})}, "a shape that none can have: an object"),
        ({"a": declared(shape=[1 << 62, 1 << 62])}, "whose product fits in 63 bits"),
        ({"a": declared(shape=[1 << 64])}, "[18446744073709551616]"),
        ({"a": declared(shape=[0, 1 << 60], offsets=[0, 0])}, "a shape that none can have"),
        ({"a": declared(shape=[1] * 65, offsets=[0, 4])}, "[1, 1, 1, 1, 1, 1, 1, 1, …]"),
        ({"a": declared(offsets=[8, 0])}, "has data_offsets [8, 0]"),
        ({"a": declared(offsets=[-8, 0])}, "has data_offsets [-8, 0]"),
        ({"a": declared(offsets=[0])}, "has data_offsets [0]"),
        ({"a": declared(offsets=[False, 8])}, "has data_offsets [False, 8]"),
        ({"a": declared(offsets=[0, [[[]]]])}, "has data_offsets [0, a list]"),
        ({"a": declared(shape=[3])}, "has 8 bytes; expected 12 for F32 of shape [3]"),
        ({"a": declared("F4", [3, 3], [0, 8])}, "has 8 bytes; expected 5 for F4"),
        ({"\ud800": declared()}, "holds half a character"),
        (b'{"\\u001b[2Ja": 1}', "tensor \\x1b[2Ja is declared"),
        ({"a" * 100_000: 1}, "…"),
    ],
)
def test_a_damaged_header_is_explained(raw: Raw, header: Any, said: str) -> None:
    assert said in refused(raw(header, bytes(8)))


def test_a_name_that_stands_twice_is_refused_since_readers_differ(raw: Raw) -> None:
    one = json.dumps(declared())
    message = refused(
        raw(f'{{"w": {one}, "b": {json.dumps(declared(offsets=[8, 16]))}, "w": {one}}}'.encode(), bytes(16))
    )
    assert "declares w twice" in message


def test_a_file_that_is_cut_off_says_how_much_and_which_tensors_are_missing(written: Written) -> None:
    path = written({name: ("F32", np.ones(25)) for name in "abcdef"}) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-450])
    message = refused(path)
    assert "450 of 600 bytes of tensors are missing, those of b, c, d and 2 more" in message
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, "np")


@pytest.mark.parametrize(
    ("header", "n", "said"),
    [
        ({"a": declared(), "b": declared(offsets=[4, 12])}, 12, "tensors a and b share bytes 4 to 8"),
        ({"a": declared(), "b": declared()}, 8, "tensors a and b share bytes 0 to 8"),
        ({"a": declared("U8", [8]), "b": declared("U8", [2], [3, 5])}, 8, "tensors a and b share bytes 3 to 5"),
        ({"a": declared(), "b": declared(offsets=[12, 20])}, 20, "bytes 8 to 12 after the header belong to no tensor"),
        ({"a": declared(offsets=[4, 12])}, 12, "bytes 0 to 4 after"),
        ({"a": declared()}, 11, "bytes 8 to 11 after"),
        ({}, 3, "bytes 0 to 3 after"),
    ],
)
def test_tensors_lie_one_after_the_other(raw: Raw, header: Any, n: int, said: str) -> None:
    path = raw(header, bytes(n))
    assert said in refused(path)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, "np")


def test_a_tensor_of_an_unknown_dtype_is_left_out_and_the_rest_is_read(raw: Raw) -> None:
    header = read_header(raw({"a": declared("F3_X", [7], [0, 3]), "b": declared(offsets=[3, 11])}, bytes(11)), "m")
    assert list(header.tensors) == ["b"]
    assert header.problems == ("m: dtype F3_X is not known; left out: 1 tensor: a",)


@pytest.mark.parametrize(
    ("metadata", "kept", "said"),
    [
        ({"a": "x", "b": 1, "c": {"d": 2}}, {"a": "x"}, "holds what is no text, and it is left out: b, c"),
        ([1], {}, "is a list, not an object of texts"),
        ({"a": "\ud800"}, {}, "left out: a"),
    ],
)
def test_odd_metadata_is_a_problem_and_no_failure(raw: Raw, metadata: Any, kept: dict[str, str], said: str) -> None:
    header = read_header(raw({"__metadata__": metadata, "a": declared()}, bytes(8)), "m")
    assert header.metadata == kept and said in header.problems[0] and len(header.tensors) == 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    assert "no file with bytes" in refused(tmp_path / "a.safetensors")


ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 4, 8, 12, 1 << 31, 1 << 63, 1 << 64, 10**30, 0.5, 8.0, 1e308, "", "F32", "U8", "F4",
    "F9", "\ud800", [], [0], [8], [1, 8], [8, 1], [2, 2, 2], [0, 8], [8, 12], [0, 12], [12, 8], [[]], {}, {"a": 1},
]  # fmt: skip


def _odd_values(random_: random.Random) -> bytes:
    """A header in which some fields hold other values, or are gone."""
    header: dict[str, Any] = {"a": declared("F8_E4M3", [2, 4], [0, 8]), "b": declared("F32", [1], [8, 12])}
    for _ in range(random_.randrange(1, 3)):
        entry = random_.choice(["a", "b"])
        field = random_.choice(["dtype", "shape", "data_offsets", "more"])
        header[entry][field] = random_.choice(ODD)
        if random_.random() < 0.1:
            del header[entry][field]
        if random_.random() < 0.1:
            header["__metadata__"] = random_.choice(ODD)
    return json.dumps(header).encode()


def _odd_bytes(random_: random.Random) -> bytes:
    """A header in which some bytes are others, gone, or repeated."""
    header = bytearray(json.dumps({"a": declared("U8", [12], [0, 12]), "__metadata__": {"format": "pt"}}).encode())
    place = random_.randrange(len(header))
    kind = random_.randrange(4)
    if kind == 0:
        header[place] = random_.randrange(256)
    elif kind == 1:
        del header[place : place + random_.randrange(1, 9)]
    elif kind == 2:
        header[place:place] = header[random_.randrange(len(header)) :][: random_.randrange(1, 30)]
    else:
        header[place] = ord(random_.choice('0123456789-"[]{},:e.a'))
    return bytes(header)


@pytest.mark.parametrize("odd", [_odd_values, _odd_bytes])
def test_whatever_a_header_holds_it_is_read_or_refused(tmp_path: Path, odd: Callable[[random.Random], bytes]) -> None:
    """A sentence; or tensors that lie in the file, and that the library takes as well where there is no problem."""
    random_ = random.Random(1)
    path = tmp_path / "a.safetensors"
    tracemalloc.start()
    n_read = n_refused = 0
    for _ in range(500):
        header = odd(random_)
        lengths = [len(header)] * 20 + [0, len(header) - 1, len(header) + 13, 1 << 27, (1 << 64) - 1]
        content = struct.pack("<Q", random_.choice(lengths)) + header + bytes(random_.choice([12] * 9 + [0, 11]))
        path.write_bytes(content)
        try:
            got = read_header(path, "a")
        except Fp8DebugError as error:
            assert "a.safetensors" in str(error)
            n_refused += 1
            continue
        n_read += 1
        for name, stored in got.tensors.items():
            assert 8 <= got.starts[name] <= got.starts[name] + stored.n * BITS[stored.dtype] / 8 <= len(content)
        if not got.problems:
            with safetensors.safe_open(path, "np") as library:
                assert set(library.keys()) == set(got.tensors)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_read > 10 and n_refused > 150
    assert peak < 4e6
