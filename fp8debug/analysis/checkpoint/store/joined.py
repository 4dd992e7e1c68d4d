"""Several files of torch.save as one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import Store, short
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import Uint8Array


def which_counts(path: Path, before: Stored, after: Stored, indexed: str | None) -> bool:
    """Whether the second of two tensors of one name is the one that counts.

    Args:
        path: of the checkpoint.
        before: one of them.
        after: the other.
        indexed: the file that an index names for it; None: there is none.

    Raises:
        Fp8DebugError: nothing says which one counts.
    """
    if indexed not in (before.file, after.file):
        raise Fp8DebugError(
            f"{path}: tensor {short(after.name)} is in {before.file} and in {after.file}, and no index says which one "
            f"counts; give the file that is meant, or a folder with the files of one checkpoint"
        )
    return after.file == indexed


class JoinedStore(Store):
    """Stores of the files of one checkpoint.

    Args:
        path: the folder.
        parts: what holds the tensors, by the names of their files.
        configs: parsed JSON files beside them.
        problems: what is known of them already.
        file_of: which file counts, where several have a tensor of a name.

    Raises:
        Fp8DebugError: two hold a tensor of the same name and nothing says which counts.
    """

    def __init__(
        self,
        path: Path,
        parts: Mapping[str, Store],
        configs: Mapping[str, Mapping[str, Any]],
        problems: Sequence[str],
        file_of: Mapping[str, str],
    ) -> None:
        self.path, self.configs = path, configs
        tensors: dict[str, Stored] = {}
        metadata: dict[str, str] = {}
        self._home: dict[str, Store] = {}
        self._parts = tuple(parts.values())
        found = list(problems)
        for file, part in parts.items():
            metadata |= part.metadata
            found += [f"{file}: {problem}" for problem in part.problems]
            for name, one in part.tensors.items():
                stored = replace(one, file=file)
                if name in tensors and not which_counts(path, tensors[name], stored, file_of.get(name)):
                    continue
                tensors[name] = stored
                self._home[name] = part
        self.tensors, self.metadata, self.problems = tensors, metadata, tuple(found)

    def read(self, name: str, first: int, last: int) -> Uint8Array:
        """As in `Store`."""
        return self._home[name].read(name, first, last)

    def close(self) -> None:
        """As in `Store`."""
        for part in self._parts:
            part.close()
