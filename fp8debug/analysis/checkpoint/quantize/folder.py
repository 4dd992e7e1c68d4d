"""Where a quantised checkpoint goes: files that appear only when all of them are whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8debug.analysis.checkpoint.quantize.configs import Description
from fp8debug.analysis.checkpoint.quantize.torch_archive import write_torch_archive
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.analysis.checkpoint.store.writing import (
    INDEX_NAME,
    SHARD_BYTES,
    WrittenTensor,
    write_safetensors,
    write_sharded,
)
from fp8debug.errors import Fp8DebugError, UsageError, some

_ENDINGS = (".safetensors", ".pt")
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.(safetensors|pt)")
"""Names of files that are written here."""
_LARGEST_COMPANION = 64 << 20
_COMPANIONS = (".json", ".txt", ".model", ".jinja")
"""Endings of files that a model needs beside its weights: tokenizers, generation settings."""
_CONFIGS = ("config.json", "hf_quant_config.json", "quantization_config.json", "quantize_config.json")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder to write, and the name of the file in it."""

    path: Path
    file: str
    is_file: bool
    """Whether a file was named, so that nothing but it and what it needs is written."""

    @classmethod
    def at(cls, target: Path, source: Path, ending: str, *, force: bool) -> Folder:
        """Check the target before anything is read.

        Args:
            target: a folder, or a file that ends in `ending`.
            source: what is read.
            ending: of files of tensors: .safetensors or .pt.
            force: whether an earlier checkpoint may be replaced.

        Raises:
            UsageError: something is there already (unless `force`), or it is the source, or in no folder.
        """
        if target.suffix in _ENDINGS and target.suffix != ending:
            raise UsageError(f"OUT {target}: this dialect is written to {ending} files; give such a name, or a folder")
        is_file = target.suffix == ending
        path = target.parent if is_file else target
        if not path.parent.is_dir() or (is_file and not path.is_dir()):
            raise UsageError(f"OUT {target}: there is no folder {path if is_file else path.parent}; make it first")
        if path.exists() and not path.is_dir():
            raise UsageError(f"OUT {target} is a file; expected a folder, or a name that ends in {ending}")
        if target.resolve() == source.resolve() or path.resolve() == _folder_of(source).resolve():
            raise UsageError(f"OUT {target} is in the folder of what is read; give another one")
        taken = target.exists() if is_file else path.is_dir() and any(path.iterdir())
        if taken and not force:
            raise UsageError(f"OUT {target} exists already; add --force to replace it, or give another name")
        if not is_file and (others := [name for name in _weights_in(path) if not _OURS.fullmatch(name)]):
            raise UsageError(f"OUT {target} holds another checkpoint, {some(others)}; give another name")
        return cls(path, target.name if is_file else f"model{ending}", is_file)

    def write(
        self, tensors: Sequence[WrittenTensor], store: Store, described: Description, shard_bytes: int | None
    ) -> tuple[str, ...]:
        """Write files of tensors, configurations, and what else the model needs; names relative to the folder.

        Raises:
            Fp8DebugError: the system refuses.
        """
        metadata = {"format": "pt", **(described.metadata or {})}
        try:
            with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=f".{self.path.name}.") as made:
                unfinished = Path(made)
                if described.classes is not None:
                    write_torch_archive(unfinished / self.file, tensors, described.classes)
                elif self.is_file:
                    write_safetensors(unfinished / self.file, tensors, metadata)
                else:
                    write_sharded(unfinished, tensors, shard_bytes or SHARD_BYTES, metadata)
                if not self.is_file:
                    _copy_companions(_folder_of(store.path), unfinished)
                self._write_configs(unfinished, store, described)
                return self._finish(unfinished)
        except OSError as error:
            raise Fp8DebugError(
                f"cannot write {self.path}: {error.strerror or error}; make room, or give another OUT"
            ) from error

    def _write_configs(self, into: Path, store: Store, described: Description) -> None:
        config = dict(store.configs.get("config.json", {}))
        config.pop("quantization_config", None)
        if described.quantization_config is not None:
            config["quantization_config"] = described.quantization_config
        if config:
            _write_json(into / "config.json", config)
        for name, text in (described.files or {}).items():
            _write_json(into / name, text)

    def _finish(self, unfinished: Path) -> tuple[str, ...]:
        """Move everything to its place; what an earlier checkpoint has left there goes."""
        self.path.mkdir(exist_ok=True)
        if not self.is_file:
            for name in (*_weights_in(self.path), INDEX_NAME, *_CONFIGS):
                (self.path / name).unlink(missing_ok=True)
        files = sorted(unfinished.iterdir())
        for file in files:
            os.replace(file, self.path / file.name)
        return tuple(file.name for file in files)


def _weights_in(folder: Path) -> list[str]:
    """Names of its files of tensors."""
    if not folder.is_dir():
        return []
    return sorted(file.name for file in folder.iterdir() if file.suffix in _ENDINGS and file.is_file())


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _copy_companions(source: Path, into: Path) -> None:
    for file in sorted(source.iterdir()):
        is_wanted = file.suffix in _COMPANIONS and not file.name.endswith(".index.json") and file.name not in _CONFIGS
        if is_wanted and file.is_file() and file.stat().st_size <= _LARGEST_COMPANION:
            shutil.copyfile(file, into / file.name)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
