"""Checkpoints of several files, with and without an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fp8debug.analysis.checkpoint import audit_checkpoint
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.errors import Fp8DebugError, UsageError

Written = Callable[..., Path]
A, B, C = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))


@pytest.fixture
def sharded(written: Written) -> Callable[..., Path]:
    """Three files of two tensors each, `1.x`, `1.y` to `3.y`, and an index of some."""

    def write(index: Any = None, leave_out: str | None = None) -> Path:
        folder = written({}, folder="m", file="empty.safetensors")
        (folder / "empty.safetensors").unlink()
        places: dict[str, str] = {}
        for number, file in enumerate((A, B, C), 1):
            tensors = {f"{number}.{letter}": ("U8", np.full(3, number, np.uint8)) for letter in "xy"}
            places |= dict.fromkeys(tensors, file)
            if file != leave_out:
                written(tensors, folder="m", file=file)
        content = {"weight_map": places if index is None else index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
        return folder

    return write


def test_what_the_index_promises_and_no_file_has_is_an_error(sharded: Callable[..., Path]) -> None:
    audit = audit_checkpoint(sharded(leave_out=B))
    (finding,) = (one for one in audit.findings if one.severity == "error")
    assert (finding.check, [place.tensor for place in finding.places]) == ("tensor_lost", [B])
    assert f"2 tensors that the index places in {B}, which is missing: 2.x, 2.y" in finding.message
    assert [one for one in audit_checkpoint(sharded()).findings if one.severity == "error"] == []


def problems(path: Path) -> str:
    with open_store(path) as store:
        assert all(problem.isprintable() for problem in store.problems)
        return "; ".join(store.problems)


def test_all_files_are_one_checkpoint(sharded: Callable[..., Path]) -> None:
    folder = sharded()
    for path in (folder, folder / "model.safetensors.index.json"):
        with open_store(path) as store:
            assert [int(store.whole(name)[0]) for name in store.tensors] == [1, 1, 2, 2, 3, 3]
            assert {stored.file for stored in store.tensors.values()} == {A, B, C}
            assert (store.problems, store.n_bytes) == ((), 18)


def test_a_missing_file_is_a_problem_that_names_what_was_in_it(sharded: Callable[..., Path]) -> None:
    folder = sharded(leave_out=B)
    with open_store(folder) as store:
        assert list(store.tensors) == ["1.x", "1.y", "3.x", "3.y"]
        (told,) = store.problems
    assert told == (
        f"1 of 3 files missing: {B}; model.safetensors.index.json places there, and not read: 2 tensors: 2.x, 2.y"
    )


def test_what_the_index_says_is_held_against_the_files(sharded: Callable[..., Path]) -> None:
    told = problems(sharded({"1.x": A, "1.y": B, "2.x": B, "2.z": B}))
    assert "in model.safetensors.index.json and not in the files that it names: 1 tensor: 2.z" in told
    assert "in another file than model.safetensors.index.json says: 1 tensor: 1.y" in told
    assert "in the files and not in model.safetensors.index.json, read all the same: 1 tensor: 2.y" in told
    assert f"model.safetensors.index.json does not name {C}; not read" in told


def test_a_link_to_a_file_elsewhere_is_followed(sharded: Callable[..., Path], tmp_path: Path) -> None:
    """As caches of downloads have them: snapshots/<commit>/model.safetensors -> ../../blobs/<digest>."""
    folder = sharded()
    (folder / B).rename(tmp_path / "blob")
    (folder / B).symlink_to(tmp_path / "blob")
    with open_store(folder) as store:
        assert store.whole("2.x").tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "a/../../x", "..", ".", "", "a\\..\\x", "a\0b", 7, None, ["x"]]
)
def test_an_index_never_leads_out_of_its_folder(sharded: Callable[..., Path], name: object) -> None:
    with pytest.raises(Fp8DebugError, match=r"names .* as a file; expected names of files in its folder") as caught:
        open_store(sharded({"1.x": A, "2.x": name}))
    assert str(caught.value).isprintable()


def test_an_index_may_name_files_in_folders_below(sharded: Callable[..., Path]) -> None:
    folder = sharded({"1.x": f"sub/{A}", "1.y": f"sub/{A}"})
    (folder / "sub").mkdir()
    (folder / A).rename(folder / "sub" / A)
    with open_store(folder) as store:
        assert list(store.tensors) == ["1.x", "1.y"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no index of a checkpoint: Expecting"),
        ("[]", "its weight_map is a list"),
        ("{}", "its weight_map is null"),
        ('{"weight_map": 3}', "its weight_map is a whole number"),
        ('{"weight_map": {"a": "b", "a": "c"}}', "it names tensor a twice"),
        ('{"weight_map": {"\\ud800": "b"}}', "holds half a character"),
        ('{"weight_map": {}}', "names no file"),
        ('{"weight_map": {"a": "b"}}', "no file that .* names is there: b;"),
        ('{"a":' * 3000, "nested too deep"),
    ],
)
def test_a_damaged_index_is_explained(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(Fp8DebugError, match=said):
        open_store(tmp_path)


def test_files_without_an_index_are_read_together_and_gaps_in_their_numbers_are_told(
    sharded: Callable[..., Path],
) -> None:
    folder = sharded(leave_out=B)
    (folder / "model.safetensors.index.json").unlink()
    told = problems(folder)
    assert told == ("model-…-of-00003.safetensors: 2 of 3 files are there, and no index tells what is in the others")


def _twice(written: Written, index: Mapping[str, str] | None) -> Path:
    for number, file in enumerate(("a.safetensors", "b.safetensors"), 1):
        folder = written(
            {"w": ("U8", np.full(2, number, np.uint8)), f"{number}": ("U8", np.zeros(1, np.uint8))}, file=file
        )
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def test_a_name_in_two_files_is_refused_unless_an_index_says_which_counts(written: Written) -> None:
    with pytest.raises(Fp8DebugError, match=r"tensor w is in a\.safetensors and in b\.safetensors, and no index says"):
        open_store(_twice(written, None))
    for file, value in (("a.safetensors", 1), ("b.safetensors", 2)):
        folder = _twice(written, {"1": "a.safetensors", "2": "b.safetensors", "w": file})
        with open_store(folder) as store:
            assert store.whole("w").tolist() == [value, value] and store.tensors["w"].file == file


def test_one_file_of_several_is_read_alone_and_that_is_said(sharded: Callable[..., Path]) -> None:
    folder = sharded()
    assert problems(folder / A) == f"{A} is one of 3 files of a checkpoint, and no other was read"
    (folder / "model.safetensors.index.json").unlink()
    assert problems(folder / A) == f"{A} is one of 3 files of a checkpoint, and no other was read"


def test_files_of_torch_are_one_checkpoint_where_an_index_says_so(tmp_path: Path) -> None:
    parts = {"a.bin": {"x": torch.ones(2), "y": torch.zeros(3)}, "b.bin": {"z": torch.full((2, 2), 7.0)}}
    for file, tensors in parts.items():
        torch.save(tensors, tmp_path / file)
    index = {name: file for file, tensors in parts.items() for name in tensors}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index | {"gone": "c.bin"}}))
    with open_store(tmp_path) as store:
        assert {name: stored.file for name, stored in store.tensors.items()} == index
        assert store.whole("z").view("<f4").tolist() == [7.0] * 4
        assert store.problems == (
            "1 of 3 files missing: c.bin; pytorch_model.bin.index.json places there, and not read: 1 tensor: gone",
        )
    with open_store(tmp_path / "b.bin") as store:
        assert store.problems == ("b.bin is one of 3 files of a checkpoint, and no other was read",)
    (tmp_path / "pytorch_model.bin.index.json").unlink()
    with pytest.raises(UsageError, match=r"holds 2 files of torch.save: a\.bin, b\.bin; give one of them"):
        open_store(tmp_path)
