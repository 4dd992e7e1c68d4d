"""Every error that a user reads is explained on a page of docs/errors/."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from fp8debug.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
ERRORS = ROOT / "docs" / "errors"
RAISED = re.compile(r"raise (?:UsageError|Fp8DebugError|NotRunnable|BadValue|NoSharedRun)\(")


@pytest.fixture
def error_pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import error_pages

    return error_pages


def test_every_place_that_raises_an_error_is_of_a_topic(error_pages: ModuleType) -> None:
    """Of a new message say in docs/errors/topics.toml which page explains it."""
    sites = {(site.module, site.line): site.texts for site in error_pages.sites()}
    raised = {
        (path.relative_to(ROOT / "fp8debug").as_posix(), number)
        for path in (ROOT / "fp8debug").rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if RAISED.search(line)
    }
    assert len(raised) > 200 and raised <= sites.keys()
    without = [
        (place, text)
        for place, texts in sites.items()
        for text in texts
        if error_pages.topic_of(place[0], text) is None
    ]
    assert without == []


def test_topics_and_pages_are_the_same_and_none_is_empty(error_pages: ModuleType) -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in ERRORS.glob("*.md")}
    listed = pages.pop("README")
    assert pages.keys() == error_pages.topics().keys()
    for name, text in pages.items():
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Why it happens", "What to do", "Messages"], name
        assert f"]({name}.md)" in listed and "\nFrom `fp8debug/" in text, name


@pytest.mark.parametrize(
    ("arguments", "topic"),
    [
        (["report", "no-such-run"], "run-not-found"),
        (["report", "sample_dumps/gpt-healthy", "--layer", "no-such-layer"], "layer-patterns"),
        (["report", "sample_dumps/gpt-healthy", "--fail-on", "rubbish"], "gates"),
        (["whatif", "sample_dumps/gpt-healthy", "--recipe", "delayed:margin=x"], "recipe-text"),
        (["sql", "sample_dumps/gpt-healthy", "drop table steps"], "sql"),
        (["checkpoint", "quantize", "no-such", "out", "--recipe", "block", "--as", "nobody"], "checkpoint-quantize"),
    ],
)
def test_what_is_printed_stands_on_the_page_of_its_topic(
    arguments: list[str], topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(arguments) in (1, 2)
    printed = capsys.readouterr().err.strip().removeprefix("fp8debug: ")
    shown = re.findall(
        r"^\* (?:`` (.+) ``|`(.+)`)$", (ERRORS / f"{topic}.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert any(re.fullmatch(_as_pattern(first or second), " ".join(printed.split())) for first, second in shown), (
        printed
    )


def _as_pattern(message: str) -> str:
    return ".+".join(map(re.escape, re.split(r"\{[a-z_…]*\}", message)))
