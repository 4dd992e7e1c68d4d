"""The documentation says what the code does: generated pages are current, links lead somewhere, examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fp8debug import metrics
from fp8debug.analysis import open_run
from fp8debug.analysis.diagnosis import Place, Rule, RuleBook, diagnose, load_rules
from fp8debug.analysis.listing import views_with_columns
from fp8debug.analysis.thresholds import THRESHOLDS
from fp8debug.cli.main import VERBS
from fp8debug.formats import FORMATS
from fp8debug.recipes import CurrentScaling
from fp8debug.rundir import Manifest, RunDir
from fp8debug.settings import load_rule_settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PAGES_BELOW = sorted((ROOT / "docs").glob("*/*.md"))


def blocks(language: str, pages: Iterable[Path] = PAGES) -> Iterator[tuple[str, str]]:
    """(page, text) of every fenced block in `language`."""
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    for page in pages:
        for text in fence.findall(page.read_text(encoding="utf-8")):
            yield page.name, text


def anchors(page: Path) -> set[str]:
    """What `#…` may follow a link to the page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_verb_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [v.name for v in VERBS if not v.hidden] == re.findall(r"^## `fp8debug (\w[\w ]*)`$", text, re.MULTILINE)


def test_every_column_of_every_view_has_a_meaning(tmp_path: Path) -> None:
    RunDir(tmp_path).write_manifest(Manifest(run_id="docs", command=[], created_at=""))
    with open_run(tmp_path) as run:
        views = views_with_columns(run.con)
    assert {view.name for view in views} >= {"steps", "tensors", "tensor_errors", "candidates", "watch"}
    assert [f"{view.name}.{column.name}" for view in views for column in view.columns if not column.meaning] == []


@pytest.mark.parametrize("page", [*PAGES, *PAGES_BELOW], ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_sql_examples_run(tmp_path: Path) -> None:
    RunDir(tmp_path).write_manifest(Manifest(run_id="docs", command=[], created_at=""))
    examples = list(blocks("sql"))
    assert examples
    with open_run(tmp_path) as run:
        for _, text in examples:
            run.sql(text.strip().rstrip(";")).fetchall()


def test_the_rule_of_the_diagnosis_page_works(tmp_path: Path) -> None:
    """Written down as the page tells, it is asked."""
    (rule,) = [text for _, text in blocks("text") if text.startswith("-- A weight with an element")]
    (settings,) = [text for _, text in blocks("toml") if "loud_weights" in text]
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "loud_weights.sql").write_text(rule)
    (tmp_path / "fp8debug.toml").write_text(settings)
    book = load_rules(load_rule_settings(environment={}, folder=tmp_path))
    assert book["loud_weights"].arguments == {"largest": 2.0}
    RunDir(tmp_path).write_manifest(Manifest(run_id="docs", command=[], created_at=""))
    with open_run(tmp_path) as run:
        assert diagnose(run, RuleBook((book["loud_weights"],))) == ()


def test_the_finding_of_the_diagnosis_page_is_one_that_is_printed() -> None:
    (shown,) = [text for page, text in blocks("text") if page == "diagnosis.md" and text.startswith("1. ERROR")]
    printed = (ROOT / "tests" / "golden" / "report_faulty.txt").read_text(encoding="utf-8")
    assert shown.removeprefix("1.") in printed


def test_the_diagnosis_page_explains_keys_and_columns_of_rules() -> None:
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    told = {
        name for cell in re.findall(r"^\| (`.+?`) \|", page, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    }
    columns = {name for name in Place.__slots__ if name != "message"} | {"severity", "confidence", "needs", "cause"}
    not_written = {"name", "meaning", "sql", "values", "user_severity", "file", "changes", "enabled"}
    keys = {field.name for field in fields(Rule)} - not_written - {"parameters", "evidence"}
    assert sorted((columns | keys | {"[parameters.NAME]", "[[evidence]]"}) - told) == []


def test_python_examples_compile() -> None:
    for page, text in blocks("python", [*PAGES, *PAGES_BELOW]):
        compile(text, page, "exec")


def test_options_in_commands_exist() -> None:
    """Those before a script: what follows it is the script's own."""
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `fp8debug (\w+)`\n(.*?)(?=^## |\Z)", reference, re.MULTILINE | re.DOTALL))
    pages = [*PAGES, *PAGES_BELOW]
    text = "\n".join(text for language in ("sh", "console") for _, text in blocks(language, pages)).replace("\\\n", " ")
    commands = re.findall(r"^(?:\$ )?fp8debug (\w+)([^\n#]*)", text, re.MULTILINE)
    assert len(commands) > 100
    for verb, words in commands:
        own = re.split(r"\s--\s|\S+\.py\b|\s-- \\", words)[0]
        for option in re.findall(r"(?<=\s)--[a-z][\w-]*", own):
            assert f"{option} " in sections[verb], (verb, option, words)


def test_metrics_page_explains_every_metric(tmp_path: Path) -> None:
    RunDir(tmp_path).write_manifest(Manifest(run_id="docs", command=[], created_at=""))
    with open_run(tmp_path) as run:
        columns = run.table("tensor_errors").columns
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    measured = columns[columns.index("n_nonzero") + 1 : columns.index("amin")]
    assert {"sqnr_db", "gain", "overflow"} < set(measured)
    assert [name for name in [*measured, "amin", "amax", "scale_gap_bits"] if f"`{name}`" not in page] == []


def table_row(page: str, name: str) -> list[float]:
    """The numbers of a row of a Markdown table; the minus sign may be a typographic one."""
    found = re.search(rf"^\| {re.escape(name)} \|(.+)\|$", page, re.MULTILINE)
    assert found is not None, name
    return [float(cell.strip().replace("\N{MINUS SIGN}", "-")) for cell in found[1].split("|")]


@pytest.mark.parametrize("fmt", ["E4M3", "E5M2"])
def test_gap_table_of_the_metrics_page_is_measured(fmt: str) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    normal = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    bits = normal.view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    histogram = metrics.RankedHistogram(*np.unique(rounded, return_counts=True))
    current = CurrentScaling().scale(float(np.abs(rounded).max()), FORMATS[fmt])
    for gap, told in zip(table_row(page, "gap, bits"), table_row(page, f"{fmt} `sqnr_db`"), strict=True):
        sums = histogram.error_sums(np.float32(current * 2.0**gap), FORMATS[fmt])
        assert metrics.sqnr_db(sums) == pytest.approx(told, abs=0.06)


def test_healthy_values_of_the_metrics_page_are_those_of_the_rules() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    told = re.search(r"31\.5 in E4M3, 25\.6 in E5M2", page)
    assert told is not None
    assert THRESHOLDS["baseline_e4m3"].default == 31.5 and THRESHOLDS["baseline_e5m2"].default == 25.6
    assert THRESHOLDS["sqnr_floor_e4m3"].default == 24.6 and THRESHOLDS["sqnr_floor_e5m2"].default == 19.1
    assert "24.6 dB (E4M3) or 19.1 dB (E5M2)" in page
