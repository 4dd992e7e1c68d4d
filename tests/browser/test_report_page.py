"""The page of a run, used as a person does: hover, click, choose, keys, print. What it shows is held against SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page

from fp8debug.analysis import open_run
from fp8debug.analysis.run import Run

if TYPE_CHECKING:
    from tests.browser.conftest import MakePage, Watched

ROOT = Path(__file__).resolve().parent.parent.parent
OUTLIER = ROOT / "sample_dumps" / "gpt-outlier"

QUERIES = {
    "underflow": "max(underflow) from tensor_errors",
    "overflow": "max(overflow) from tensor_errors",
    "sqnr_db": "min(sqnr_db) from tensor_errors",
    "sqnr_low_db": "min(sqnr_low_db) from tensor_errors",
    "scale_gap_bits": "max(scale_gap_bits) from scale_gaps",
    "amax": "max(log2(amax)) from tensors",
}
"""Written by hand: what the cell of a layer and a step has to be. The demo has one micro-batch a step."""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with open_run(OUTLIER) as opened:
        yield opened


@pytest.fixture
def page(watched: Watched, html_of: MakePage) -> Page:
    return watched.open(html_of("report", OUTLIER))


def cell(run: Run, metric: str, layer: str, step: int, tensor: str = "x", recipe: str = "delayed") -> float:
    by_recipe = "" if metric == "amax" else f" and recipe = '{recipe}' and not alternate"
    ((value,),) = run.sql(
        f"select {QUERIES[metric]} where layer = $layer and step = $step and tensor = $tensor{by_recipe}",
        layer=layer, step=step, tensor=tensor,
    ).fetchall()  # fmt: skip
    return float(value)


def field(page: Page, name: str) -> str:
    return page.locator(f"#tooltip [data-field={name}]").inner_text()


def number(page: Page) -> float:
    """The value in the tooltip, before it is rounded to be read."""
    return float(page.locator("#tooltip [data-field=value]").get_attribute("data-number") or "nan")


def hover(page: Page, x: float, y: float) -> None:
    """Point at a place of the heatmap, in shares of its width and height."""
    canvas = page.locator("canvas.heatmap").first
    canvas.scroll_into_view_if_needed()
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # scrolling hides it
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.wait_for_selector("#tooltip:not([hidden])")


@pytest.mark.parametrize("sample", ["gpt-healthy", "smollm2"])
def test_the_pages_of_healthy_samples(sample: str, watched: Watched, html_of: MakePage) -> None:
    """The third is the page of all other tests."""
    page = watched.open(html_of("report", ROOT / "sample_dumps" / sample))
    page.wait_for_selector("html[data-complete]")
    assert "Nothing is wrong" in page.locator("header").inner_text()
    assert page.locator("#layer .uplot").count() + page.locator("#training .uplot").count() > 0


def test_trouble_is_read_first(page: Page, watched: Watched) -> None:
    assert page.locator("h1").inner_text() == "gpt-outlier: FP8 report"
    assert "2 operands should fall back to BF16" in page.locator("header").inner_text()
    headings = page.locator("h2").all_inner_texts()
    assert headings[0] == "Findings" and headings.index("Findings") < headings.index("Layers over steps")
    first = page.locator("#findings").inner_text()
    assert first.index("blocks.1.fc1") < first.index("blocks.2.qkv")
    watched.keep("report", full=True)


@pytest.mark.parametrize("metric", QUERIES)
def test_a_cell_shows_what_sql_says(metric: str, page: Page, run: Run) -> None:
    page.select_option("select#metric", metric)
    seen = set()
    for x, y in ((0.3, 0.38), (0.62, 0.38), (0.8, 0.55), (0.45, 0.1), (0.93, 0.92)):
        hover(page, x, y)
        layer, step = field(page, "layer"), int(field(page, "step"))
        seen.add((layer, step))
        assert number(page) == pytest.approx(cell(run, metric, layer, step), rel=2e-3, abs=2e-3)
    assert len(seen) == 5


def test_what_is_read_in_a_cell_is_its_number(page: Page, run: Run) -> None:
    page.select_option("select#metric", "underflow")
    page.select_option("select#operand", "x")
    hover(page, 0.6, 0.38)
    assert field(page, "layer") == "blocks.1.fc1"
    shown = re.fullmatch(r"([\d.]+) %", field(page, "value"))
    assert shown is not None
    assert float(shown[1]) == pytest.approx(
        100 * cell(run, "underflow", "blocks.1.fc1", int(field(page, "step"))), abs=0.06
    )
    assert field(page, "band") == "over half becomes zero"


def test_another_tensor_and_another_recipe(page: Page, run: Run) -> None:
    page.select_option("select#metric", "sqnr_db")
    page.select_option("select#operand", "dy")
    page.select_option("select#recipe", label="current E5M2")
    hover(page, 0.5, 0.5)
    layer, step = field(page, "layer"), int(field(page, "step"))
    assert number(page) == pytest.approx(cell(run, "sqnr_db", layer, step, "dy", "current"), abs=0.05)


def test_a_click_opens_the_layer(page: Page, run: Run, watched: Watched) -> None:
    page.select_option("select#metric", "underflow")
    hover(page, 0.99, 0.38)
    step = int(field(page, "step"))
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector("#layer .uplot")
    assert page.locator("#layer-title").inner_text() == "blocks.1.fc1"
    assert f"step={step}" in page.url
    page.locator("#layer canvas.distribution").scroll_into_view_if_needed()
    ((n,),) = run.sql(
        "select sum(count) from histograms where layer = 'blocks.1.fc1' and tensor = 'x' and step = 195"
    ).fetchall()
    assert f"{n:,} finite elements" in page.locator("#layer").inner_text()
    watched.keep("layer")
    page.go_back()
    assert "step=" not in page.url or f"step={step}" not in page.url


def test_a_finding_leads_to_its_cell(page: Page) -> None:
    page.locator("#findings a", has_text="blocks.2.qkv x").first.click()
    page.wait_for_function("document.getElementById('layer-title')?.textContent === 'blocks.2.qkv'")
    assert page.locator("#layer .tabs [aria-current]").inner_text() == "x"


def test_keys_alone(page: Page, run: Run) -> None:
    canvas = page.locator("canvas.heatmap").first
    page.select_option("select#metric", "sqnr_low_db")
    canvas.focus()
    page.keyboard.press("Home")
    before = page.locator("#announce").inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    said = page.locator("#announce").inner_text()
    assert said != before
    layer = next(name for name in run.manifest.layers if name.name in said).name
    page.keyboard.press("Enter")
    page.wait_for_function("name => document.getElementById('layer-title')?.textContent === name", arg=layer)
    page.keyboard.press("Escape")
    page.wait_for_function("document.activeElement.matches('canvas.heatmap')")
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()


def test_a_spike_names_the_tensors_that_moved(page: Page) -> None:
    spike = page.locator("#training").inner_text()
    assert "Gradient norm, step 15" in spike
    page.locator("#training a", has_text="blocks.0.fc1 dy").click()
    page.wait_for_function("document.getElementById('layer-title')?.textContent === 'blocks.0.fc1'")
    assert "tensor=dy" in page.url and "step=15" in page.url


def test_queries_can_be_copied_and_run(page: Page, run: Run) -> None:
    queries = page.locator("pre.sql").all_text_contents()
    assert len(queries) >= 10
    for query in queries:
        assert run.sql(query.strip().rstrip(";")).limit(1).fetchall() is not None
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button.copy:visible").first.click()
    page.wait_for_selector("button:has-text('Copied')")
    copied = page.evaluate("navigator.clipboard.readText()").strip()
    assert copied in [text.strip() for text in page.locator("pre").all_text_contents()]


def test_light_dark_narrow_and_printed(page: Page, watched: Watched) -> None:
    def background() -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    page.get_by_role("button", name="Dark").click()
    assert background() != light
    watched.keep("report-dark")
    page.get_by_role("button", name="Light").click()
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_timeout(150)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    watched.keep("report-narrow")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(media="print")
    assert not page.locator("select#metric").is_visible()
    watched.keep("report-print", full=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_barrier(scheme: Any, page: Page) -> None:
    """axe-core's rules for WCAG A and AA."""
    page.emulate_media(color_scheme=scheme)
    page.reload()
    page.wait_for_selector("html[data-complete]")
    page.evaluate((ROOT / "build" / "axe-core-4.14.1.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in serious] == []


def test_words_are_there_without_scripts(browser: Browser, html_of: MakePage) -> None:
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(html_of("report", OUTLIER).as_uri())
    text = page.locator("body").inner_text()
    assert "2 operands should fall back to BF16" in text and 'layer = "blocks.1.fc1"' in text
    context.close()


def test_the_numbers_in_words_are_those_of_the_json(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    from fp8debug.cli.main import main

    assert main(["report", str(OUTLIER), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    text = page.locator("#findings").inner_text()
    for finding in report["findings"]:
        assert finding["message"] in text
        for evidence in finding["evidence"]:
            assert evidence["value"] in text
