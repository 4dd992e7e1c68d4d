"""torch.distributed.checkpoint folders: written by torch, and by hand with its own classes where ranks are many."""

from __future__ import annotations

import io
import itertools
import pickle
import random
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat, _StorageInfo
from torch.distributed.checkpoint.state_dict_saver import save

from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.store.coverage import fault_of
from fp8debug.analysis.checkpoint.store.distributed import open_distributed
from fp8debug.analysis.checkpoint.store.metadata import Chunk
from fp8debug.errors import Fp8DebugError

Pieces = Sequence[tuple[tuple[int, ...], torch.Tensor]]


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def by_torch(folder: Path, state: Mapping[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(dict(state), checkpoint_id=folder, no_dist=True)
    return folder


def by_ranks(
    folder: Path,
    tensors: Mapping[str, tuple[tuple[int, ...], Pieces]],
    *,
    file_of: Any = lambda rank: f"__{rank}_0.distcp",
    payload: Any = lambda tensor: tensor,
    transforms: Any = None,
) -> Path:
    """A folder in which every piece of a tensor was written by another rank."""
    folder.mkdir()
    declared: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    files: dict[str, io.BytesIO] = {}
    for name, (size, pieces) in tensors.items():
        chunks = []
        for rank, (offsets, tensor) in enumerate(pieces):
            file = files.setdefault(file_of(rank), io.BytesIO())
            first, archive = file.tell(), io.BytesIO()
            torch.save(payload(tensor), archive)
            file.write(archive.getvalue())
            chunks.append(dcp.ChunkStorageMetadata(torch.Size(offsets), tensor.shape))
            stored[dcp.MetadataIndex(name, offsets)] = _StorageInfo(
                file_of(rank), first, len(archive.getvalue()), transforms
            )
        properties = dcp.TensorProperties(pieces[0][1].dtype if pieces else torch.float32)
        declared[name] = dcp.TensorStorageMetadata(properties, torch.Size(size), chunks)
    (folder / ".metadata").write_bytes(pickle.dumps(dcp.Metadata(declared, storage_data=stored)))
    for name, file in files.items():
        if "/" not in name:
            (folder / name).write_bytes(file.getvalue())
    return folder


def cut(tensor: torch.Tensor, *edges: tuple[int, ...]) -> Pieces:
    """Pieces of a tensor, cut at those places of each axis."""
    bounds = [list(itertools.pairwise((0, *cuts, size))) for cuts, size in zip(edges, tensor.shape, strict=True)]
    return [
        (tuple(low for low, _ in block), tensor[tuple(slice(*pair) for pair in block)].clone())
        for block in itertools.product(*bounds)
    ]


def test_what_torch_saves_is_read(tmp_path: Path) -> None:
    w = torch.randn(30, 8, generator=torch.Generator().manual_seed(2))
    state = {
        "model": {
            "w": w.bfloat16(), "t": w.t(), "s": torch.tensor(2.0), "f8": w.to(torch.float8_e4m3fn), "e": w[:0],
            "part": torch.zeros(4, 4)[:, :2], "fc._extra_state": io.BytesIO(), "large": torch.arange(1 << 16),
        },
        "optimizer": {"state": {0: {"exp_avg": w, "step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]},
        "epoch": 7,
    }  # fmt: skip
    torch.save({"scale_fwd": torch.tensor([2.0, 4.0, 1.0])}, state["model"]["fc._extra_state"])  # type: ignore[index]
    by_torch(tmp_path / "step-1", state)
    with open_store(tmp_path / "step-1") as store:
        model: dict[str, Any] = state["model"]  # type: ignore[assignment]
        scales = "model.fc._extra_state#scale_fwd"
        assert set(store.tensors) == {f"model.{name}" for name in model if "extra" not in name} | {scales}
        for name, tensor in model.items():
            if "extra" not in name:
                assert store.tensors[f"model.{name}"].shape == tuple(tensor.shape)
                assert np.array_equal(store.whole(f"model.{name}"), bytes_of(tensor)), name
        assert store.whole(scales).view("<f4").tolist() == [2.0, 4.0, 1.0]
        left, objects = store.problems
        assert left == "left out: 2 tensors of the optimizer or of random numbers"
        assert objects.startswith("left out, no tensors: ") and "epoch" in objects


@pytest.mark.parametrize(
    ("shape", "edges"),
    [
        ((7, 10), ((3, 5), ())),
        ((7, 10), ((), (4,))),
        ((7, 10), ((2,), (1, 9))),
        ((4, 3, 5), ((1,), (1, 2), (2,))),
        ((6,), ((1, 4),)),
    ],
)
def test_pieces_of_any_axes_are_put_together(
    tmp_path: Path, shape: tuple[int, ...], edges: tuple[tuple[int, ...], ...]
) -> None:
    whole = torch.arange(int(np.prod(shape)), dtype=torch.int16).reshape(shape)
    by_ranks(tmp_path / "c", {"w": (shape, cut(whole, *edges))})
    raw = bytes_of(whole)
    with open_distributed(tmp_path / "c") as store:
        assert store.problems == ()
        for first in range(0, len(raw), 11):
            for last in range(first, len(raw) + 1, 13):
                assert np.array_equal(store.read("w", first, last), raw[first:last])
        assert np.array_equal(np.concatenate([band.reshape(-1) for _, band in store.bands("w", chunk_bytes=9)]), raw)


def test_missing_overlapping_and_outlying_pieces(tmp_path: Path) -> None:
    w = torch.ones(4, 6)
    quarters = cut(w, (2,), (3,))
    by_ranks(
        tmp_path / "c",
        {
            "good": ((4, 6), quarters),
            "hole": ((4, 6), quarters[:3]),
            "twice": ((4, 6), [*quarters, ((1, 1), torch.ones(2, 2))]),
        },
    )
    with open_distributed(tmp_path / "c") as store:
        assert list(store.tensors) == ["good"]
        assert store.problems == (
            "not read: hole: 6 of 24 elements are in no piece, such as [2:4, 3:6]",
            "not read: twice: its pieces [0:2, 0:3] and [1:3, 1:3] overlap",
        )
    by_ranks(tmp_path / "d", {"w": ((4, 6), [((2, 0), w)])})
    with pytest.raises(Fp8DebugError, match=r"a piece of tensor w is not within its shape \[4, 6\]"):
        open_distributed(tmp_path / "d")


def test_faults_of_many_pieces() -> None:
    rows = [Chunk((at, 0), (1, 8)) for at in range(1000)]
    assert fault_of((1000, 8), rows) is None
    assert fault_of((1000, 8), rows[:500] + rows[501:]) == "8 of 8,000 elements are in no piece, such as [500:501, 0:8]"
    assert fault_of((), [Chunk((), ())]) is None
    assert fault_of((0, 3), []) is None
    assert fault_of((2, 3), []) == "6 of 6 elements are in no piece, such as [0:2, 0:3]"


def test_missing_and_short_files_take_their_tensors_with_them(tmp_path: Path) -> None:
    w = torch.ones(4, 6)
    folder = by_ranks(tmp_path / "c", {"whole": ((4, 6), [((0, 0), w)]), "halves": ((4, 6), cut(w, (2,), ()))})
    (folder / "__1_0.distcp").unlink()
    with open_distributed(folder) as store:
        assert list(store.tensors) == ["whole"]
        assert store.problems == ("1 of 2 files missing: __1_0.distcp; not read: 1 tensor: halves",)
    data = (folder / "__0_0.distcp").read_bytes()
    (folder / "__0_0.distcp").write_bytes(data[:-30])
    with open_distributed(folder) as store:
        assert list(store.tensors) == ["whole"]
    (folder / "__0_0.distcp").write_bytes(data[:100])
    with open_distributed(folder) as store:
        assert "files end too early, fetch them again; not read: 2 tensors: whole, halves" in store.problems
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(Fp8DebugError, match=r"no file that .* names is there: __0_0\.distcp, __1_0\.distcp"):
        open_distributed(folder)


@pytest.mark.parametrize("file", ["../outside", "/etc/passwd", "a/../../b", "a\\b", ""])
def test_files_outside_of_the_folder_are_not_read(tmp_path: Path, file: str) -> None:
    folder = by_ranks(tmp_path / "c", {"w": ((2,), [((0,), torch.ones(2))])}, file_of=lambda _: file if file else "/")
    with pytest.raises(Fp8DebugError, match="nothing outside of it is read"):
        open_distributed(folder)


def test_pieces_that_are_not_what_the_metadata_says(tmp_path: Path) -> None:
    tensors = {"w": ((300, 300), [((0, 0), torch.ones(300, 300))])}
    other = by_ranks(tmp_path / "a", tensors, payload=lambda tensor: torch.ones(150, 600))
    with open_distributed(other) as store, pytest.raises(Fp8DebugError, match=r"F32 \[150, 600\], and .metadata says"):
        store.whole("w")
    through = by_ranks(tmp_path / "b", tensors, transforms=["zstd"])
    with open_distributed(through) as store:
        assert store.problems == ("not read, written through zstd: 1 tensor: w",)


class Wrapping(torch.Tensor):
    """A tensor of tensors, as torchao's are."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], **attributes: torch.Tensor) -> Wrapping:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16)

    def __init__(self, shape: tuple[int, ...], **attributes: torch.Tensor) -> None:
        self.__dict__.update(attributes)

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> Any:
        raise NotImplementedError


def test_classes_that_hold_codes_and_scales_are_taken_apart(tmp_path: Path) -> None:
    codes = torch.arange(300 * 300).remainder(120).to(torch.uint8).view(torch.float8_e4m3fn).reshape(300, 300)
    weight = torch.ones(300, 300, dtype=torch.bfloat16)
    tensors = {"fc.weight": ((300, 300), [((0, 0), weight)]), "halves": ((300, 300), cut(weight, (150,), ()))}
    folder = by_ranks(
        tmp_path / "c",
        tensors,
        payload=lambda one: Wrapping(tuple(one.shape), qdata=codes[: len(one)].clone(), scale=torch.ones(len(one), 1)),
    )
    with open_distributed(folder) as store:
        assert list(store.tensors) == ["fc.weight", "fc.weight#scale"]
        assert store.tensors["fc.weight"].dtype == "F8_E4M3"
        assert np.array_equal(store.whole("fc.weight"), bytes_of(codes))
        assert store.tensors["fc.weight#scale"].shape == (300, 1)
        (problem,) = store.problems
        assert problem.startswith("not read: halves: it is in 2 pieces, each a ")
        assert problem.endswith("Wrapping; save it without sharding")


def test_what_is_no_tensor_though_declared_as_one_is_said(tmp_path: Path) -> None:
    folder = by_ranks(tmp_path / "c", {"w": ((2,), [((0,), torch.ones(2))])}, payload=lambda _: {"a": 1})
    with open_distributed(folder) as store:
        assert store.problems == ("not read: w: it is a dict",)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (b"", "damaged pickle"),
        (pickle.dumps({"a": 1}), "does not say which tensors there are"),
        (pickle.dumps(dcp.Metadata({})), "does not say where tensors are"),
        (pickle.dumps(dcp.Metadata({1: 2}, storage_data={})), "a name of a tensor is no text"),  # type: ignore[dict-item]
        (pickle.dumps(dcp.Metadata({}, storage_data={"w": 1})), "not said in a way that is known"),
    ],
)
def test_metadata_of_other_kinds(tmp_path: Path, metadata: bytes, words: str) -> None:
    (tmp_path / ".metadata").write_bytes(metadata)
    with pytest.raises(Fp8DebugError, match=words):
        open_distributed(tmp_path)


def test_mutated_folders_give_errors_or_tensors(tmp_path: Path) -> None:
    tensors = {"a": ((4, 6), cut(torch.ones(4, 6), (2,), (3,))), "b": ((3,), [((0,), torch.ones(3).half())])}
    folder = by_ranks(tmp_path / "c", tensors, file_of=lambda _: "__0_0.distcp")
    whole = {name: (folder / name).read_bytes() for name in (".metadata", "__0_0.distcp")}
    generator = random.Random(3)
    n_errors = 0
    for at in range(40):
        name = (".metadata", "__0_0.distcp")[at % 2]
        data = bytearray(whole[name])
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        (folder / name).write_bytes(data)
        try:
            with open_distributed(folder) as store:
                for tensor in store.tensors:
                    store.whole(tensor)
        except Fp8DebugError:
            n_errors += 1
        (folder / name).write_bytes(whole[name])
    assert 5 < n_errors < 40


def test_files_of_the_other_format_are_told_about(tmp_path: Path) -> None:
    writer = FileSystemWriter(tmp_path / "c", serialization_format=SerializationFormat.SAFETENSORS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({"w": torch.ones(2)}, storage_writer=writer, no_dist=True)
    with open_store(tmp_path / "c") as store:
        (problem,) = store.problems
        assert problem.startswith("files are in the format of safetensors, ")
        assert problem.endswith("; not read: 1 tensor: w")
