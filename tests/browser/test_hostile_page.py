"""Names that would be markup, scripts or addresses are shown as the names that they are."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.cli.main import main

if TYPE_CHECKING:
    from tests.browser.conftest import Watched

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=document.title='owned'>",
    "a\"onmouseover=\"document.title='owned'",
    "it's; drop table tensors; -- &lt;",
    "#layer=other&tensor=w",
    "javascript:document.title='owned'",
    "right-to-left \u202e override",
)


@pytest.fixture
def page_file(tmp_path: Path, synthetic_run: ModuleType) -> Path:
    run = synthetic_run.SyntheticRun(tmp_path / "run", name="<b>bold</b>", layers=[_layer(name) for name in HOSTILE])
    values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    for step in range(12):
        for name in HOSTILE:
            run.add(name, "x", values, step=step, scales=(synthetic_run.ForcedScale(scale=2.0**12),))
    run.write()
    file = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "run"), "--html", str(file)]) in (0, 3)
    return file


def _layer(name: str) -> object:
    from fp8debug.rundir import LayerInfo

    return LayerInfo(name=name, raw_name=name, class_name="Linear", root="M", in_features=64, out_features=64,
                     matched=True)  # fmt: skip


def test_nothing_is_obeyed(page_file: Path, watched: Watched) -> None:
    page = watched.open(page_file)
    title = page.title()
    page.wait_for_selector("html[data-complete]")
    assert page.locator("main img, header img").count() == 0
    assert page.evaluate(
        "[...document.querySelectorAll('a')].every(a => !/^javascript:/i.test(a.getAttribute('href')))"
    )
    for name in HOSTILE[:-1]:
        assert page.evaluate("fp8debug.page.runs[0].layers").count(name) == 1
        page.evaluate("name => { location.hash = fp8debug.address({ layer: name, tensor: 'x' }) }", name)
        page.wait_for_function("name => document.getElementById('layer-title')?.textContent === name", arg=name)
    assert page.title() == title
    watched.keep("report-hostile", full=True)
