"""Transformer Engine's stand-in, made anew for each test, under the real `nvdlfw_inspect`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fp8debug.hooks.backends.transformer_engine import early, feature, inspection

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach

STAND_IN = Path(__file__).parents[3] / "data" / "transformer_engine"


@pytest.fixture
def stand_in_path() -> Path:
    """What has to be on the path for `import transformer_engine`."""
    return STAND_IN


@pytest.fixture
def attach(attach: Attach) -> Attach:
    """As ever, without details, which take time and are not asked about here."""
    return lambda model, **options: attach(model, **{"detail": ()} | options)


@pytest.fixture
def te(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`transformer_engine.pytorch`, whose debug API starts with its first module, as under `fp8debug attach`."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    _forget_everything()
    early.prepare()
    yield importlib.import_module("transformer_engine.pytorch")
    _forget_everything()


def _forget_everything() -> None:
    early.forget()
    api = sys.modules.get("nvdlfw_inspect.api")
    if api is not None and api.DEBUG_MANAGER is not None:
        api.end_debug()
    feature.LINK.receiver = None
    inspection._Own.manager = inspection._Own.problem = None
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformer_engine"]:
        del sys.modules[name]
