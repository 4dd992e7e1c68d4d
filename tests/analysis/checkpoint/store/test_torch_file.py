"""Files of torch.save, read without torch: against the tensors that torch wrote into them."""

from __future__ import annotations

import argparse
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.store.torch_file import open_torch_file
from fp8debug.errors import Fp8DebugError

Saved = Callable[[Any], Path]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    def save(value: Any) -> Path:
        torch.save(value, tmp_path / "model.pt")
        return tmp_path / "model.pt"

    return save


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def test_tensors_of_every_kind_have_torchs_bytes(saved: Saved) -> None:
    w = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    tensors = {
        "F32": w, "BF16": w.bfloat16(), "F16": w.half(), "F64": w.double(), "F8_E4M3": w.to(torch.float8_e4m3fn),
        "F8_E5M2": w.to(torch.float8_e5m2), "F8_E4M3FNUZ": w.to(torch.float8_e4m3fnuz),
        "F8_E8M0": w.abs().to(torch.float8_e8m0fnu), "I64": w.long(), "I32": w.int(), "I8": w.to(torch.int8),
        "U8": w.to(torch.uint8), "BOOL": w > 0, "U16": torch.ones(3, dtype=torch.uint16),
    }  # fmt: skip
    with open_torch_file(saved(tensors)) as store:
        for dtype, tensor in tensors.items():
            assert (store.tensors[dtype].dtype, store.tensors[dtype].shape) == (dtype, tuple(tensor.shape))
            assert np.array_equal(store.whole(dtype), bytes_of(tensor)), dtype
        assert store.problems == ()
        assert store.n_bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_views_of_shared_storages_are_read_in_row_major_order(saved: Saved) -> None:
    base = torch.arange(4 * 6 * 5, dtype=torch.int16).reshape(4, 6, 5)
    views = {
        "base": base, "turned": base.permute(2, 0, 1), "part": base[1:3, ::2, 1:4],
        "wide": base[:1, :1].expand(3, 4, 5), "scalar": base[3, 5, 4],
        "empty": base[:0], "parameter": torch.nn.Parameter(base.float()),
    }  # fmt: skip
    with open_torch_file(saved(views)) as store:
        assert {name: store.tensors[name].shape for name in views} == {n: tuple(t.shape) for n, t in views.items()}
        for name, tensor in views.items():
            whole = bytes_of(tensor)
            for first, last in [(0, len(whole)), (1, len(whole) - 1), (7, 21), (3, 3)]:
                if 0 <= first <= last <= len(whole):
                    assert np.array_equal(store.read(name, first, last), whole[first:last]), (name, first, last)


def test_a_large_turned_matrix_is_read_without_its_whole_storage(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp8debug.analysis.checkpoint.store.strided.SMALL_BYTES", 0)
    matrix = torch.arange(40 * 30, dtype=torch.int32).reshape(40, 30)
    with open_torch_file(saved({"t": matrix.t(), "s": matrix[::3, 2::4]})) as store:
        for name, tensor in (("t", matrix.t()), ("s", matrix[::3, 2::4])):
            bands = [raw for _, raw in store.bands(name, chunk_bytes=500)]
            assert np.array_equal(np.concatenate(bands).reshape(-1), bytes_of(tensor))


def test_two_codes_in_a_byte_count_as_two(saved: Saved) -> None:
    packed = torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(torch.float4_e2m1fn_x2)
    with open_torch_file(saved({"w": packed})) as store:
        assert (store.tensors["w"].dtype, store.tensors["w"].shape) == ("F4", (2, 6))
        assert store.whole("w").tolist() == list(range(6))


def test_only_weights_come_out_and_the_rest_is_named(saved: Saved) -> None:
    w = torch.ones(2, 2)
    value = {
        "model": {"a.weight": w, "b": [{"weight": w}]},
        "optimizer": {"state": {0: {"exp_avg": w, "step": torch.tensor(1.0)}}, "param_groups": [{"lr": 1.0}]},
        "cpu_rng_state": torch.zeros(8, dtype=torch.uint8), "args": argparse.Namespace(lr=1), "epoch": 3,
        "chained_0": {"optimizer": {"param": w}}, "shapes": {"a": w.shape, "b": w.shape}, "device": w.device,
        "sparse": w.to_sparse(),
    }  # fmt: skip
    with open_torch_file(saved(value)) as store:
        assert list(store.tensors) == ["model.a.weight", "model.b.0.weight"]
        assert store.problems == (
            "left out: 4 tensors of the optimizer or of random numbers",
            "not read: sparse: it is rebuilt by torch._utils._rebuild_sparse_tensor, which is not read",
            "not read: args: a value of argparse.Namespace",
            "left out, no tensors: epoch, shapes.a, shapes.b and 1 more",
        )


def test_a_module_saved_whole_gives_its_parameters(saved: Saved) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with open_torch_file(saved(model)) as store:
        assert set(store.tensors) == set(model.state_dict())
        assert np.array_equal(store.whole("0.weight"), bytes_of(model.state_dict()["0.weight"]))


def test_one_tensor_alone_is_read(saved: Saved) -> None:
    with open_torch_file(saved(torch.arange(3))) as store:
        assert store.whole("tensor").view("<i8").tolist() == [0, 1, 2]


def test_the_way_from_a_path(saved: Saved) -> None:
    path = saved({"w": torch.ones(2)})
    for given in (path, path.parent):
        with open_store(given) as store:
            assert list(store.tensors) == ["w"]


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None], compression: int = zipfile.ZIP_STORED) -> Path:
    """A copy in which every entry went through `change`; None: left out."""
    other = path.with_name("other.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w", compression) as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return other


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name, data: None if "data/0" in name else data, "lacks data/0"),
        (lambda name, data: data[:-8] if "data/0" in name else data, r"tensor w needs 400 bytes .* has 392"),
        (lambda name, data: b"big" if name.endswith("byteorder") else data, "byteorder big"),
        (lambda name, data: None if name.endswith("data.pkl") else data, "expected one data.pkl, got none"),
        (lambda name, data: data[:-9] if name.endswith("data.pkl") else data, "damaged pickle"),
    ],
)
def test_damaged_archives_say_what_is_wrong(
    saved: Saved, change: Callable[[str, bytes], bytes | None], words: str
) -> None:
    with pytest.raises(Fp8DebugError, match=words):
        open_torch_file(rewritten(saved({"w": torch.ones(100)}), change))


def test_compressed_entries_are_refused_not_unpacked(saved: Saved) -> None:
    path = rewritten(saved({"w": torch.zeros(1 << 20)}), lambda name, data: data, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    with pytest.raises(Fp8DebugError, match=r"compressed or encrypted, .* save it again with torch\.save"):
        open_torch_file(path)


def test_files_of_other_kinds_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(Fp8DebugError, match=r"before PyTorch 1\.6.*torch\.save\(torch\.load"):
        open_torch_file(path)
    path.write_bytes(b"hello")
    with pytest.raises(Fp8DebugError, match="is no zip archive"):
        open_torch_file(path)
    torch.save({"epoch": 3}, path)
    with pytest.raises(Fp8DebugError, match=r"holds no tensors of a model; .*; left out, no tensors: epoch"):
        open_torch_file(path)
    with pytest.raises(Fp8DebugError, match="cannot read"):
        open_torch_file(tmp_path / "absent.pt")


def test_a_pickle_that_repeats_one_element_for_ever_is_not_read(saved: Saved) -> None:
    with pytest.raises(Fp8DebugError, match="repeats the elements of a small storage"):
        open_torch_file(saved({"w": torch.ones(1).expand(1 << 40)}))


def test_dicts_in_a_circle_or_very_many_are_refused(saved: Saved) -> None:
    circle: dict[str, Any] = {"w": torch.ones(1)}
    circle["self"] = circle
    with pytest.raises(Fp8DebugError, match="nested deeper than 32 dicts"):
        open_torch_file(saved(circle))


def test_mutated_files_give_errors_or_tensors(saved: Saved, tmp_path: Path) -> None:
    whole = saved(
        {"model": {"w": torch.ones(3, 4).t(), "b": torch.ones(2).to(torch.float8_e4m3fn)}, "n": 1}
    ).read_bytes()
    generator = np.random.default_rng(5)
    path = tmp_path / "mutated.pt"
    n_errors = 0
    for at in range(100):
        data = bytearray(whole)
        # Half of the changes in the pickle, the others in headers of the archive.
        low, high = (0, 700) if at % 2 else (0, len(data))
        for place in generator.integers(low, high, 3):
            data[place] = generator.integers(256)
        path.write_bytes(data[: generator.integers(len(data) // 2, len(data) + 1) if at % 5 == 0 else len(data)])
        try:
            with open_torch_file(path) as store:
                for name in store.tensors:
                    store.whole(name)
        except Fp8DebugError:
            n_errors += 1
    assert 20 < n_errors < 100


def test_a_local_header_that_points_elsewhere_is_found(saved: Saved) -> None:
    path = saved({"w": torch.ones(100)})
    data = bytearray(path.read_bytes())
    at = data.index(b"archive/data/0") if b"archive/data/0" in data else data.index(b"data/0") - len("model/")
    data[at - 2 : at] = struct.pack("<H", 0xFFFF)
    path.write_bytes(data)
    with open_torch_file(path) as store, pytest.raises(Fp8DebugError, match="not where it should be"):
        store.whole("w")


def test_nothing_runs_when_a_harmful_file_is_opened(saved: Saved, tmp_path: Path) -> None:
    import os

    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    with open_torch_file(saved({"w": torch.ones(2), "x": Harmful()})) as store:
        assert store.problems == (f"not read: x: a value of {os.system.__module__}.system",)
        store.whole("w")
    assert not (tmp_path / "ran").exists()


def test_bytes_held_by_a_stream_are_not_mistaken(saved: Saved) -> None:
    with open_torch_file(saved({"w": torch.ones(2), "buffer": io.BytesIO(b"x")})) as store:
        assert list(store.tensors) == ["w"]
