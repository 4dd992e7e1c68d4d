"""Memory and disk of a capture that runs on: the short form of benchmarks/soak.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def test_memory_is_flat_and_the_disk_grows_evenly(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import soak

    monkeypatch.setattr(soak, "SAMPLES", 12)
    found = soak.soak(tmp_path / "run", 360, 20, engine="torch")
    warm = found.steps.index(120)
    assert max(found.rss[warm:]) - found.rss[warm] < 24 * soak.MB
    assert found.disk[-1] > found.disk[warm]
    assert found.bent < 1.6
    sys.modules.pop("soak")
