"""The page of 200 layers over 1,000 steps: small enough to send, and there at once."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from fp8debug.analysis import open_run

if TYPE_CHECKING:
    from tests.browser.conftest import MakePage, Watched

MAX_BYTES = 2_000_000
MAX_MS = 500.0
N_LAYERS, N_STEPS = 200, 1000


@pytest.fixture(scope="module")
def wide(once: Any, wide_run: ModuleType) -> Path:
    return Path(once("wide-run", lambda folder: wide_run.write_wide_run(folder / "run", N_LAYERS, N_STEPS))) / "run"


def test_two_hundred_layers_and_a_thousand_steps(wide: Path, watched: Watched, html_of: MakePage) -> None:
    file = html_of("report", wide)
    assert file.stat().st_size < MAX_BYTES
    interactive = []
    for _ in range(6):
        page = watched.open(file)
        interactive.append(page.evaluate("performance.getEntriesByName('fp8debug-interactive')[0].startTime"))
    print(f"{file.stat().st_size:,} bytes, interactive after {min(interactive):.0f} ms")
    assert min(interactive) < MAX_MS
    page.select_option("select#metric", "amax")
    canvas = page.locator("canvas.heatmap").first
    canvas.focus()
    page.keyboard.press("End")
    watched.keep("report-wide", full=True)
    drawn = page.evaluate("[fp8debug.page.runs[0].layers.length, fp8debug.page.runs[0].first_steps.length]")
    assert drawn[0] == N_LAYERS
    notes = " ".join(page.locator("#notes, section:has(#notes)").all_inner_texts())
    assert drawn[1] == N_STEPS or "worst" in notes  # thinned, and said so
    page.keyboard.press("Escape")


def test_a_planted_fault_is_seen_on_it(wide: Path, watched: Watched, html_of: MakePage) -> None:
    with open_run(wide) as run:
        ((layer, step, gap),) = run.sql(
            "select layer, step, scale_gap_bits from scale_gaps where tensor = 'x' and recipe = 'delayed' "
            "order by scale_gap_bits desc limit 1"
        ).fetchall()
    page = watched.open(html_of("report", wide), f"#layer={layer}&tensor=x&step={step}&metric=scale_gap_bits")
    page.wait_for_selector("html[data-complete]")
    assert page.locator("#layer-title").inner_text() == layer
    row = page.locator("#layer table tr", has_text="Scale gap").filter(has_text="delayed E4M3").first.inner_text()
    worst = float(row.split("\t")[3].split()[0])
    assert worst == pytest.approx(gap, abs=0.07)  # to an eighth of a bit at least, as the page says
