"""A model from what a person names on the command line: `file.py:name`, or a Hugging Face model directory."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fp8debug.errors import UsageError, nearest

_EXPECTED = "expected file.py:name, the name of a function, a class or a model in it, or a Hugging Face model directory"


def load_model(text: str, *, weights: bool = True) -> nn.Module:
    """Make the model that `text` names.

    Args:
        text: `file.py:name`, where `name` is an nn.Module, or a function or class that gives one without arguments; or
            a directory that transformers saved a model in. The file is imported, not run as `__main__`.
        weights: False: a directory's weights are not read; the model is on the meta device.

    Raises:
        UsageError: no such file or name, it needs arguments, it fails, it gives no nn.Module; transformers is missing.
    """
    if Path(text).is_dir():
        return _from_directory(Path(text), weights)
    file, colon, name = text.rpartition(":")
    if not colon or not name or not file.endswith(".py"):
        hint = f"; for example {text}:build_model" if text.endswith(".py") else ""
        raise UsageError(f"got {text!r}; {_EXPECTED}{hint}")
    path = Path(file)
    if not path.is_file():
        near = nearest(path.name, [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else [])
        hint = f" (nearest: {', '.join(near)})" if near else ""
        raise UsageError(f"no such file: {file}{hint}; {_EXPECTED}")
    return _made(_attribute(_import(path), name, file), text)


def is_model_source(text: str) -> bool:
    """Whether `load_model` is meant to take `text`: a Python file with a name, or a saved model's directory."""
    file, colon, name = text.rpartition(":")
    return bool(colon and name and file.endswith(".py")) or (Path(text) / "config.json").is_file()


def _import(path: Path) -> ModuleType:
    """The file as a module, its folder first on the path as when it is run."""
    path = path.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # stays: what it makes may import more when it is called
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = before
        raise _failed(f"{path.name} could not be imported", error) from error
    return module


def _attribute(module: ModuleType, name: str, file: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [word for word in dir(found) if not word.startswith("_")]
            near = nearest(part, known) or known[:3]
            raise UsageError(f"{file} has no {name}; nearest names: {', '.join(near) or 'none'}")
        found = getattr(found, part)
    return found


def _made(found: Any, text: str) -> nn.Module:
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise UsageError(
            f"{text} is of type {type(found).__name__}; expected an nn.Module, or a function that gives one"
        )
    if required := _required(found):
        raise UsageError(
            f"{text} needs {', '.join(required)}; expected a function without required arguments, for example "
            "`def build(): return Model(...)`"
        )
    try:
        model = found()
    except Exception as error:
        raise _failed(f"{text} could not be called", error) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"{text} gave an object of type {type(model).__name__}; expected an nn.Module")
    return model


def _required(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    varying = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in varying]


def _from_directory(folder: Path, weights: bool) -> nn.Module:
    config = folder / "config.json"
    if not config.is_file():
        raise UsageError(f"{folder} has no config.json; {_EXPECTED}")
    if importlib.util.find_spec("transformers") is None:
        raise UsageError(f"{folder} needs transformers to be read (pip install transformers), or give file.py:name")
    import transformers

    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        names = settings.get("architectures") or ["AutoModelForCausalLM"]
        architecture: Any = getattr(transformers, names[0], transformers.AutoModelForCausalLM)
        if weights:
            model: Any = architecture.from_pretrained(folder, local_files_only=True)
        else:
            with torch.device("meta"):
                read: Any = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
                made = getattr(architecture, "_from_config", None) or architecture.from_config
                model = made(read)
    except Exception as error:
        raise _failed(f"transformers could not read {folder}", error) from error
    assert isinstance(model, nn.Module)
    return model


def _failed(what: str, error: BaseException) -> UsageError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return UsageError(f"{what}: {type(error).__name__}: {error}{place}")
