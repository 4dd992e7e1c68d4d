"""What a notebook shows: the facts of the run, and nothing of a stranger's file as markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from fp8debug.analysis import notebook, open_run
from fp8debug.analysis.checkpoint import Audit, CheckFinding, CheckPlace, Convention, Facts
from fp8debug.analysis.diagnosis import Evidence, Finding, Place
from fp8debug.analysis.report import build_report
from fp8debug.analysis.scope import Scope
from fp8debug.analysis.whatif import whatif
from fp8debug.analysis.whatif.notes import Note

HOSTILE = "<img src=x onerror=alert(1)>\"&'\x1b[31m\u202e</details>"


class Markup(HTMLParser):
    """Tags, whether they are balanced, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        assert all(name == "style" for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_what_is_shown(
    repository: Path, tmp_path: Path, synthetic_run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = Scope(layer=r"blocks\.[12]\.(fc1|qkv)")
    with open_run(repository / "sample_dumps" / "gpt-outlier", threads=1, scope=scope) as run:
        report = build_report(run)
        monkeypatch.setattr(notebook, "build_report", lambda _: report)
        shown = Markup(run._repr_html_())
        answer = whatif(run, ["current", "mxfp8"], layer="blocks.2.qkv")
    assert "It is closed; fp8debug.open_run opens it again." in Markup(run._repr_html_()).text
    assert "closed; steps 0 to 199, 40 sampled; 17 of 17 layers recorded" in shown.text
    assert {"candidates", "operand_steps"} <= set(re.findall(r"\w+", shown.text)) and "records," not in shown.text
    for page in (shown, Markup(report._repr_html_())):
        assert "Something is wrong." in page.text
        assert "blocks.1.fc1 x: under delayed outliers set the scale" in page.text
    (finding, _) = report.findings
    told = Markup(finding._repr_html_())
    assert "74.6" in told.text and "blocks.1.fc1 x under current; steps 0 to 195" in told.text
    rows = Markup(answer._repr_html_())
    (entry,) = [e for e in answer.operands if (e.recipe, e.tensor, e.gemm) == ("current", "x", None)]
    assert f"blocks.2.qkvxcurrentE4M3{entry.sqnr_db:.1f}{entry.sqnr_low_db:.1f}" in rows.text

    report = replace(
        report,
        run=replace(report.run, path=HOSTILE, status=HOSTILE, recipes=(HOSTILE,)),
        findings=(hostile_finding("error"),),
        candidates=(replace(report.candidates[0], layer=HOSTILE, tensor=HOSTILE),),
    )
    answer = replace(
        answer, recipes=(HOSTILE,), operands=(replace(entry, layer=HOSTILE, tensor=HOSTILE, recipe=HOSTILE),),
        notes=(Note("sample", HOSTILE),),
    )  # fmt: skip
    written = synthetic_run.SyntheticRun(tmp_path / "<img src=x onerror=alert(1)>", recipes=[HOSTILE])
    written.add_row("steps", step=0, loss=1.0)
    written.write()
    with open_run(written.path, threads=1) as run:
        pages = [run._repr_html_(), report._repr_html_(), answer._repr_html_()]
    of_finding = 3 + 2 + 3 + 3 * 4 + 1
    for page, n_names in zip(map(Markup, pages), (2 + of_finding, 3 + of_finding + 2, 5), strict=True):
        assert_harmless(page)
        assert page.text.count("<img src=x onerror=alert(1)>") == n_names


def test_an_empty_run_says_so(tmp_path: Path, synthetic_run: ModuleType) -> None:
    written = synthetic_run.SyntheticRun(tmp_path / "run", status="running")
    with open_run(written.path) as run:
        assert "nothing recorded yet" in Markup(run._repr_html_()).text


@pytest.mark.parametrize("severity", ["error", "note"])
def test_names_stay_names(severity: str) -> None:
    shown = Markup(hostile_finding(severity)._repr_html_())
    assert_harmless(shown)
    assert shown.text.count("<img src=x onerror=alert(1)>") == 3 + 2 + 3 + 3 * 4 + 1
    assert "… and 4 more places" in shown.text


def test_an_audit() -> None:
    places = tuple(CheckPlace(HOSTILE, HOSTILE) for _ in range(9))
    findings = (CheckFinding("scale_missing", "error", "Codes without a scale (9)", HOSTILE, places),)
    read = Convention("deepseek", HOSTILE, HOSTILE, ())
    shown = Markup(Audit(HOSTILE, 1, 5, 10, read, Facts({}, {}, {}), findings, (), ())._repr_html_())
    assert_harmless(shown)
    assert "5 tensors, 0 of them quantised" in shown.text
    assert "error scale_missing Codes without a scale (9): " in shown.text
    assert "… and 4 more places" in shown.text
    clean = Markup(Audit("m", 1, 5, 10, Convention(None, "", "", ()), Facts({}, {}, {}), (), (), ())._repr_html_())
    assert "nothing in it is quantised" in clean.text and "Nothing found that is wrong." in clean.text


def hostile_finding(severity: str) -> Finding:
    place = Place(HOSTILE, HOSTILE, None, HOSTILE, 3, 1, 5, 2, 3, 1.0, HOSTILE)
    return Finding(
        HOSTILE, severity, "likely", HOSTILE, HOSTILE, HOSTILE, (Evidence(HOSTILE, HOSTILE, HOSTILE),), (place,) * 9
    )


def assert_harmless(page: Markup) -> None:
    assert "img" not in page.tags and "\x1b" not in page.text and "\u202e" not in page.text
