"""The documentation builds as a site without a warning, and that site fetches nothing from anywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ASSET = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
NOT_RENDERED = re.compile(r"<p>[^<]*\n *(?:[*-] |\d+\. |\|)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make site`, elsewhere: strict, so that a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    # Material for MkDocs advertises its successor on standard error, which is no warning about a page.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr  # with --quiet, strict would not be
    return folder


def test_every_page_of_the_documentation_is_on_the_site_and_in_its_navigation(site: Path) -> None:
    """A new page is put into `nav` of mkdocs.yml."""
    pages = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    wanted = {page.replace("README", "index") for page in pages}
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    assert built == wanted and len(wanted) > 90
    start = (site / "index.html").read_text(encoding="utf-8")
    assert wanted - set(re.findall(r'href="([^"#]+\.html)"', start)) == set()


def test_pages_are_whole_and_fetch_nothing(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert ASSET.findall(text) == [], path.name
        assert 'class="mermaid"' not in text, path.name  # the theme would fetch what draws it
        prose = re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL)
        assert NOT_RENDERED.findall(prose) == [], path.name  # a list or table that GitHub shows and mkdocs does not
    assert "IFrameWorker" in (site / "assets" / "iframe-worker.js").read_text(encoding="utf-8")


def test_links_out_of_the_documentation_are_paths(site: Path) -> None:
    captured = (site / "captured.html").read_text(encoding="utf-8")
    assert "tests/<wbr>integrations/<wbr>test_<wbr>hf.py" in captured and 'href="../tests' not in captured


def test_sources_of_the_site_are_not_on_it(site: Path) -> None:
    assert [path for path in site.rglob("*") if path.suffix in (".py", ".toml", ".md")] == []


def test_pictures_are_those_that_the_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import pictures

    for name, svg in pictures.pictures().items():
        assert (DOCS / "images" / name).read_text(encoding="utf-8") == svg, name


def test_pictures_show_the_formats_and_the_runs() -> None:
    """E4M3 has 126 positive numbers and E5M2 123: each is a mark. What the outlier does is said in numbers."""
    grid = (DOCS / "images" / "grid.svg").read_text(encoding="utf-8")
    assert (grid.count('class="blue"'), grid.count('class="orange"')) == (126, 123)
    outlier = (DOCS / "images" / "outlier.svg").read_text(encoding="utf-8")
    assert "74.2 % become zero. SQNR 31.7 dB, of the smallest 99 %: 3.0 dB" in outlier
    page = (DOCS / "concepts" / "pictures.md").read_text(encoding="utf-8")
    assert re.findall(r"!\[.{80,}\]\(\.\./images/([\w-]+)\.svg\)", page) == ["grid", "gap-sqnr", "outlier", "gap-steps"]
