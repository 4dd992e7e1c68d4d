"""A page that would be too large, and addresses that it links to."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis.page.records import Metric, PageRun, Plane
from fp8debug.cli.render.html import document
from fp8debug.cli.render.html.container import decode
from fp8debug.cli.render.html.data import PageData
from fp8debug.cli.render.html.document import Document, write
from fp8debug.cli.render.html.elements import NOTHING, element, prose, text
from fp8debug.cli.render.html.links import address

N_STEPS = 128


def _page_data() -> PageData:
    """Noise between 2 and 4, but for one value."""
    noise = np.random.default_rng(0).uniform(2.0, 4.0, (16, N_STEPS)).astype(np.float32)
    noise[3, 100] = 4096.0
    steps = np.arange(N_STEPS)
    plane = Plane("amax", "x", None, None, noise, "select layer, step, amax as value\nfrom tensor_steps\n")
    layers = tuple(f"layer.{i}" for i in range(16))
    run = PageRun("run", "runs/run", layers, steps, steps, (plane,), None, (), ("A note of the run.",))
    return PageData("report", (Metric("amax", "Amax", "", "Largest.", "largest", True, ()),), (), (run,))


def _read(page: str) -> tuple[dict[str, Any], np.ndarray[Any, Any], str]:
    found = re.search(r'id="fp8debug-data">([^<]*)<', page)
    assert found is not None
    header, (plane,) = decode(found[1])
    return header["runs"][0], plane, page[page.index('id="notes"') :]


def _write(most: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(document, "MOST_BYTES", most)
    return write(Document("title", NOTHING, [], (), _page_data()))


def test_a_page_is_as_fine_as_its_size_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _write(2_000_000, monkeypatch)
    run, plane, notes = _read(whole)
    assert run["planes"][0]["bits"] == 16 and plane.shape == (16, N_STEPS)
    assert "A note of the run" in notes and "Amax 0.14 % of the value" in notes

    middle = _write(len(whole) - 200, monkeypatch)
    run, plane, notes = _read(middle)
    assert run["planes"][0]["bits"] == 8 and plane.shape == (16, N_STEPS) and "Amax 4.4 % of the value" in notes

    coarse = _write(len(middle) - 200, monkeypatch)
    run, plane, notes = _read(coarse)
    assert run["planes"][0]["bits"] == 8 and plane.shape == (16, N_STEPS)
    assert "Amax 9.1 % of the value" in notes and "to keep the page below" not in notes

    short = _write(len(coarse) - 200, monkeypatch)
    run, plane, notes = _read(short)
    assert plane.shape == (16, N_STEPS // 2) and run["first_steps"][:3] == [0, 2, 4] and run["last_steps"][0] == 1
    assert plane[3, 50] == 12.0  # the worst of steps 100 and 101
    assert f"to keep the page below {document.MOST_BYTES:,} bytes" in notes
    assert f"Steps 0 to 127 are shown in {N_STEPS // 2} columns" in notes
    assert len(short) < len(coarse) < len(middle) < len(whole)

    run, plane, _ = _read(_write(1, monkeypatch))  # nothing helps: as small as it gets
    assert plane.shape == (16, 1) and plane[3, 0] == 12.0


def test_a_page_lets_nothing_in() -> None:
    page = write(Document("</title><script>alert(1)</script>", text("<b>"), [], (), _page_data()))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1] and "unsafe-inline" not in policy[1].partition("style-src")[0]
    assert "<script>alert" not in page and "<b>" not in page
    assert "Copyright (c)" in page and "uPlot" in page


def test_addresses_are_those_that_scripts_read() -> None:
    assert address("blocks.0.fc1", "x", 12, "underflow") == "#layer=blocks.0.fc1&tensor=x&step=12&metric=underflow"
    assert address("a&b=c #%") == "#layer=a%26b%3Dc%20%23%25"
    assert address("a\u202e\n", "x", 0) == "#layer=a%5Cu202e%5Cn&tensor=x&step=0"


def test_only_pairs_of_backticks_are_code() -> None:
    assert prose("run `a < b` now") == "run <code>a &lt; b</code> now"
    assert prose("a ` b") == "a ` b"
    assert element("p", text('"<'), title="'\">", class_="x") == '<p title="&#x27;&quot;&gt;" class="x">&quot;&lt;</p>'
