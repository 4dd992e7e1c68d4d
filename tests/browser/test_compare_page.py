"""Two runs side by side: one choice for both, and their difference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fp8debug.analysis import open_run

if TYPE_CHECKING:
    from tests.browser.conftest import MakePage, Watched

ROOT = Path(__file__).resolve().parent.parent.parent
HEALTHY, OUTLIER = (ROOT / "sample_dumps" / name for name in ("gpt-healthy", "gpt-outlier"))


def test_two_runs_and_their_difference(watched: Watched, html_of: MakePage) -> None:
    page = watched.open(html_of("compare", HEALTHY, OUTLIER))
    page.wait_for_selector("html[data-complete]")
    assert page.locator("canvas.heatmap").count() == 3
    page.select_option("select#metric", "underflow")
    page.select_option("select#recipe", label="delayed E4M3")
    shown = []
    for number in range(3):
        canvas = page.locator("canvas.heatmap").nth(number)
        canvas.scroll_into_view_if_needed()
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        box = canvas.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.37 * box["height"])
        page.wait_for_selector("#tooltip:not([hidden])")
        fields = {name: page.locator(f"#tooltip [data-field={name}]") for name in ("layer", "step", "value")}
        where = (fields["layer"].inner_text(), int(fields["step"].inner_text()))
        shown.append((where, float(fields["value"].get_attribute("data-number") or "nan")))
    query = "select underflow from tensor_errors where layer = $l and step = $s and tensor = 'x' and recipe = 'delayed'"
    with open_run(HEALTHY) as healthy, open_run(OUTLIER) as outlier:
        for number, ((layer, step), value) in enumerate(shown):
            assert layer == "blocks.1.fc1"
            first, second = (float(run.sql(query, l=layer, s=step).fetchall()[0][0]) for run in (healthy, outlier))
            assert value == pytest.approx((first, second, second - first)[number], abs=4e-3)
    assert page.locator("#training .uplot").count() >= 1
    watched.keep("compare", full=True)
