"""`--html`: pages that hold what the report says, whatever names a run has, and that need nothing from elsewhere."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest

from fp8debug.analysis.page.several import short_names
from fp8debug.analysis.report import Report
from fp8debug.analysis.run import Run, open_run
from fp8debug.cli import report_page
from fp8debug.cli.html_file import HtmlFile
from fp8debug.cli.main import main
from fp8debug.cli.render.html.container import decode
from fp8debug.cli.render.json import report_json
from fp8debug.errors import escape

VOID = {"meta", "link", "br"}
HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "a\u202eb\x1b[31m\nnext`line`&amp;",
    "</title></style>--><!--&tensor=w#x=y %00",
)


@dataclass
class Element:
    """One element, with the text directly or deeper in it."""

    name: str
    attributes: dict[str, str]
    path: str
    text: str = ""


@dataclass
class Parsed(HTMLParser):
    """A page as a browser reads it; refuses what is not balanced."""

    elements: list[Element] = field(default_factory=list)
    opened: list[Element] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        path = " ".join(element.name for element in self.opened)
        element = Element(tag, {name: value or "" for name, value in attrs}, path)
        self.elements.append(element)
        if tag not in VOID:
            self.opened.append(element)

    def handle_endtag(self, tag: str) -> None:
        opened = self.opened.pop()
        if opened.name != tag:
            self.odd.append(f"<{opened.name}> ended by </{tag}>")

    def handle_data(self, data: str) -> None:
        for element in self.opened:
            element.text += data

    def handle_comment(self, data: str) -> None:
        self.odd.append(f"comment {data}")

    def all(self, name: str, **attributes: str) -> list[Element]:
        return [e for e in self.elements if e.name == name and attributes.items() <= e.attributes.items()]

    def by_id(self, id_: str) -> Element:
        (found,) = [element for element in self.elements if element.attributes.get("id") == id_]
        return found


def read(page: str) -> Parsed:
    """The page, checked: balanced, every id once, no link that leads nowhere, nothing loaded from anywhere."""
    parsed = Parsed()
    parsed.feed(page)
    parsed.close()
    assert parsed.odd == [] and parsed.opened == []
    ids = Counter(e.attributes["id"] for e in parsed.elements if "id" in e.attributes)
    assert [id_ for id_, n in ids.items() if n > 1] == []
    layers = {layer for run in data_of(parsed)[0]["runs"] for layer in run["layers"]}
    for element in parsed.elements:
        assert not [name for name in element.attributes if name.startswith("on") or name in ("src", "style", "srcset")]
        for name in ("aria-labelledby", "aria-describedby"):
            assert element.attributes.get(name, next(iter(ids))) in ids
        target = element.attributes.get("href")
        if target is not None and target.startswith("#layer="):
            assert parse_qs(target[1:], strict_parsing=True)["layer"][0] in layers
        elif target is not None and element.name == "a":
            assert target[1:] in ids
        elif target is not None:
            assert (element.name, target) == ("link", "data:,")
    assert [script.attributes.get("type") for script in parsed.all("script")] == ["text/plain", None]
    return parsed


def data_of(parsed: Parsed) -> tuple[dict[str, Any], list[Any]]:
    return decode(parsed.by_id("fp8debug-data").text)


@dataclass(frozen=True)
class Made:
    """A page, and the document that `--json` would have printed in its place."""

    page: str
    report: dict[str, Any]


@pytest.fixture(scope="module")
def faulty(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    file = tmp_path_factory.mktemp("pages") / "faulty.html"
    reports: list[Report] = []
    with pytest.MonkeyPatch.context() as patch:
        made = report_page.report_page

        def keep(run: Run, report: Report, *rest: Any, **more: Any) -> str:
            reports.append(report)
            return made(run, report, *rest, **more)

        patch.setattr(report_page, "report_page", keep)
        assert main(["report", str(shared / "faulty"), "--html", str(file)]) == 0
    return Made(file.read_text(encoding="utf-8"), json.loads(report_json(reports[0])))


@pytest.fixture(scope="module")
def hostile_run(synthetic_run: ModuleType, runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every name that a run has is an attempt on its page."""
    values = runs.Values(synthetic_run)
    path = tmp_path_factory.mktemp("hostile") / "run<b>&amp;"
    layers = [synthetic_run.layer_info(name) for name in HOSTILE]
    run = synthetic_run.SyntheticRun(
        path, layers=layers, recipes=["current"], tensors=["x"], status="closed", name="<img src=x onerror=alert(2)>",
        versions={"torch": "<script>alert(3)</script>"}, git_commit="<b>", status_reason="`<i>`",
    )  # fmt: skip
    for step in range(4):
        for layer in HOSTILE:
            run.add(layer, "x", values.with_outliers(3e5), step=step)
    run.add_row("events", step=None, unix_s=0.0, kind="odd", layer="<u>", message="<script>alert(4)</script>")
    written: Path = run.write()
    return written


def test_a_page_says_what_the_report_says(faulty: Made) -> None:
    report, parsed = faulty.report, read(faulty.page)
    (verdict,) = parsed.all("p", **{"class": "verdict findings"})
    assert f"{report['n_errors']} errors" in verdict.text
    for number, finding in enumerate(report["findings"], 1):
        text = parsed.by_id(f"finding-{number}").text
        assert finding["severity"] in text and finding["message"].replace("`", "") in text
        if finding["severity"] in ("error", "warning"):
            assert finding["advice"].replace("`", "") in text
            for evidence in finding["evidence"]:
                assert f"{evidence['title']}{evidence['value']}{evidence['healthy']}" in text
    for section, suspects in (("candidates", report["candidates"]), ("watch", report["watch"])):
        text = parsed.by_id(section).text
        for suspect in suspects:
            worst = suspect["verdicts"][0]
            assert f"{suspect['layer']} {suspect['tensor']}" in text
            assert f"{worst['db_lost']:.1f}" in text and worst["reason"] in text
    assert data_of(parsed)[0]["links"][0]["layer"] == report["findings"][0]["places"][0]["layer"]


def test_planes_hold_what_their_queries_give(faulty: Made, shared: Path) -> None:
    header, planes = data_of(read(faulty.page))
    (run,) = header["runs"]
    assert run["layers"] == ["blocks.0.fc1", "blocks.1.fc1", "blocks.2.fc2", "blocks.3.fc1"]
    metrics = {metric["name"]: metric for metric in header["metrics"]}
    assert {"underflow", "overflow", "sqnr_db", "scale_gap_bits", "amax"} <= set(metrics)
    one_each = {entry["metric"]: place for place, entry in enumerate(run["planes"])}
    n_values = 0
    with open_run(shared / "faulty") as opened:
        for entry, plane in [(run["planes"][place], planes[place]) for place in sorted(one_each.values())[:6]]:
            rows = opened.sql(entry["sql"]).fetchall()
            known = {(layer, step): value for layer, step, value in rows if value is not None}
            n_values += len(known)
            for place, value in known.items():
                shown = plane[run["layers"].index(place[0]), run["first_steps"].index(place[1])]
                wanted = np.log2(value) if metrics[entry["metric"]]["is_log2"] and value else value
                if np.isfinite(wanted) and np.isfinite(shown):
                    assert abs(shown - wanted) <= entry["unit"] / 2 or abs(wanted) < entry["unit"] / 2
                else:
                    assert shown == wanted or (value == 0 and shown == -np.inf)
            assert np.isfinite(plane).sum() + np.isinf(plane).sum() == len(known)
    assert n_values >= 6 * 4 * 12 - 12


def test_the_what_if_has_the_figures_of_the_terminal(
    faulty: Made, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(shared / "faulty")]) == 0
    printed = capsys.readouterr().out
    parsed = read(faulty.page)
    body = faulty.page[faulty.page.index('class="matrix"') :].partition("</table>")[0]
    row = body[body.index(">current</th>") :].partition("</tr>")[0]
    shown = [html.unescape(cell).removeprefix("! ") for cell in re.findall(r"<td[^>]*>([^<]*)</td>", row)]
    lines = [line.split()[1:] for line in printed.splitlines() if line.split()[:1] == ["current"]]
    assert shown == [word for words in lines for word in words] and len(shown) == 15
    assert "fp8debug plan" in parsed.by_id("plan").text and "[[entry]]" in parsed.by_id("plan").text


def test_names_of_a_run_are_text_and_nothing_else(hostile_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert main(["report", str(hostile_run), "--html", str(file)]) == 0
    page = file.read_text(encoding="utf-8")
    parsed = read(page)
    for layer in HOSTILE:
        assert escape(layer) in parsed.by_id("candidates").text
    assert data_of(parsed)[0]["runs"][0]["layers"] == [escape(layer) for layer in HOSTILE]
    assert "<img src=x onerror=alert(2)>" in parsed.all("h1")[0].text
    assert "<script>alert(4)</script>" in parsed.by_id("problems").text
    assert "<script>alert(3)</script>" in parsed.by_id("run").text
    assert not {"img", "b", "i", "u"} & {element.name for element in parsed.elements}
    outside = re.sub(r"(?s)<(style|script)\b.*?</\1>", "", page)
    assert not [character for character in outside if not (character.isprintable() or character == "\n")]


def test_two_runs_side_by_side(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(shared / "healthy"), str(shared / "faulty"), "--html"]) == 0
    parsed = read((tmp_path / "healthy-faulty.html").read_text(encoding="utf-8"))
    header, planes = data_of(parsed)
    first, second = header["runs"]
    assert header["kind"] == "compare" and [run["name"] for run in header["runs"]] == ["healthy", "faulty"]
    assert first["layers"] == second["layers"] and first["first_steps"] == second["first_steps"]
    absent = planes[0][first["layers"].index("blocks.3.fc1")]
    assert np.isnan(absent).all()
    assert "faulty against healthy" in parsed.all("h1")[0].text
    assert "No measurable gap" in parsed.by_id("pair-1").text


def test_curves_without_tensors_have_no_heatmap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rise in (("bf16", 0.0), ("fp8 <b>", 4.0)):
        rows = [f"{step},{5.5 - step / 100 + rise * (step == 61)}" for step in range(100)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    assert main(["compare", "bf16.csv", "fp8 <b>.csv", "--html"]) == 0
    assert capsys.readouterr().out == "bf16-fp8 <b>.html\n"
    parsed = read((tmp_path / "bf16-fp8 <b>.html").read_text(encoding="utf-8"))
    assert not parsed.all("div", id="heatmap") and parsed.all("div", id="training")
    first, second = data_of(parsed)[0]["runs"]
    assert first["planes"] == [] and len(second["training"]["loss"]) == 100
    assert second["training"]["spikes"][0]["first_step"] == 61


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "--html", "{run}"], "is a folder; expected a file name, or --html at the end"),
        (["report", "{run}", "--html", "notes.html"], "no page of fp8debug"),
        (["report", "{run}", "--html", "{run}/page.html"], "inside the run directory"),
        (["report", "{run}", "--html", "nowhere/page.html"], "there is no folder"),
        (["report", "{run}", "--json", "--html"], "one of them"),
        (["compare", "{run}", "{run}", "--html", "--json"], "one of them"),
        (["compare", "{run}", "{run}", "--html", "{run}/page.html"], "inside the run directory"),
    ],
)
def test_files_that_are_not_written(
    words: list[str], said: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.html").write_text("<p>mine")
    assert main([word.format(run=shared / "healthy") for word in words]) == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / "notes.html").read_text() == "<p>mine"


def test_a_page_may_be_written_again(faulty: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.html"
    file.write_text(faulty.page)
    HtmlFile.from_option(str(file), []).write("<p>new")
    assert file.read_text() == "<p>new" and capsys.readouterr().out == f"{file}\n"
    assert list(tmp_path.iterdir()) == [file]


def test_files_and_runs_are_called_by_the_end_of_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loss.csv").write_text("step,loss\n0,1\n")
    assert HtmlFile.from_option("", ["s3://bucket/runs/bf16", "loss.csv"]).path == Path("bf16-loss.html")
    assert short_names(["runs/bf16", "runs/fp8/", "loss.csv"]) == ["bf16", "fp8", "loss.csv"]
    assert short_names(["a/run", "b/run"]) == ["a/run", "b/run"]
    assert short_names(["a/run", "a/run"]) == ["run", "run"]
