"""Tensors that an index promises and no file has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.records import CheckPlace
from fp8debug.errors import some


def lost_tensors(subject: Subject) -> Iterator[Hit]:
    """One place a file that they should be in."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for name, file in subject.store.lost.items():
        by_file[file].append(name)
    there = {stored.file for stored in subject.store.tensors.values()}
    for file, names in by_file.items():
        why = "which is there without them" if file in there else "which is missing"
        n = "1 tensor" if len(names) == 1 else f"{len(names):,} tensors"
        message = f"{n} that the index places in {file}, {why}: {some(names)}"
        place = CheckPlace(file, message, numbers={"n_tensors": len(names)}, brief=n)
        yield Hit("tensor_lost", place, weight=len(names))
