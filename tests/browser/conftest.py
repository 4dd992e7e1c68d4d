"""Pages in Debian's headless Chromium, cut off from every network; what they print and ask for is held against them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

from fp8debug.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
SCREENSHOTS = ROOT / "build" / "screenshots"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

MakePage = Callable[..., Path]


@dataclass
class Watched:
    """A page, and what went wrong on it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    """Console errors, warnings and exceptions."""
    requests: list[str] = field(default_factory=list)
    """Addresses that it asked for, itself included."""

    def hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def dismiss(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path: Path, fragment: str = "") -> Page:
        """Go there and wait until the heatmap is drawn."""
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("html[data-ready]", timeout=20_000)
        return self.page

    def keep(self, name: str, *, full: bool = False) -> None:
        """Leave a picture in build/screenshots."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=full)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    assert executable is not None, "no chromium: `make build/.chromium` installs Debian's"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """A tab 1,280 pixels wide. After the test: nothing was complained of, nothing asked of a network."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(15_000)
    tab = Watched(context.new_page())

    tab.page.on("console", tab.hear)
    tab.page.on("dialog", tab.dismiss)
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("request", lambda request: tab.requests.append(request.url))
    yield tab
    context.close()
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.fixture(scope="session")
def html_of(once: Any) -> MakePage:
    """`html_of("report", run)`: the page that the command line makes, once a session."""

    def make(*arguments: str | Path) -> Path:
        words = tuple(map(str, arguments))

        def write(folder: Path) -> None:
            assert main([*words, "--html", str(folder / "page.html")]) == 0

        name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
        return Path(once(f"page-{name}", write)) / "page.html"

    return make
