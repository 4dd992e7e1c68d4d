"""What a page of a run takes: bytes, seconds to make it, and milliseconds until it can be used in a browser.

    python benchmarks/html_pages.py [--check] [--markdown docs/performance.md]

The samples, and runs of random walks with x, w and dy of each layer at every step and errors at every tenth.
Chromium is headless and offline; the median of five loads after a first one, from the start of the navigation to the
drawn heatmap. With `--check` exit code 1 when a page has 2,000,000 bytes or more, or needs 500 ms or more.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from pages import machine, replace_section
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ("gpt-outlier", "smollm2")
WIDE = ((50, 1_000), (200, 1_000))
"""Layers and steps."""
LOADS = 5
MAX_BYTES, MAX_MS = 2_000_000, 500.0
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@dataclass(frozen=True)
class Measured:
    """One page."""

    run: str
    n_layers: int
    n_columns: int
    made_s: float
    """Processor time of the command."""
    n_bytes: int
    interactive_ms: float


def write_wide_run(path: Path, n_layers: int, n_steps: int) -> None:
    """A run as the tests have it."""
    spec = spec_from_file_location("wide_run", ROOT / "tests" / "wide_run.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["wide_run"] = module
    spec.loader.exec_module(module)
    module.write_wide_run(path, n_layers, n_steps)


def runs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of each run."""
    yield from ((f"sample_dumps/{name}", ROOT / "sample_dumps" / name) for name in SAMPLES)
    for n_layers, n_steps in WIDE:
        path = folder / f"wide-{n_layers}"
        write_wide_run(path, n_layers, n_steps)
        yield f"{n_layers} layers, {n_steps:,} steps", path
        shutil.rmtree(path)


def measure(name: str, run: Path, file: Path, browser: Browser) -> Measured:
    """Make the page and open it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fp8debug", "report", str(run), "--html", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    made_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    times: list[float] = []
    n_layers = n_columns = 0
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    for _ in range(1 + LOADS):
        page = context.new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-complete]", timeout=60_000)
        times.append(page.evaluate("performance.getEntriesByName('fp8debug-interactive')[0].startTime"))
        n_layers, n_columns = page.evaluate(
            "[fp8debug.page.runs[0].layers.length, fp8debug.page.runs[0].first_steps.length]"
        )
        page.close()
    context.close()
    return Measured(name, n_layers, n_columns, made_s, file.stat().st_size, statistics.median(times[1:]))


def table(found: list[Measured], browser: str) -> list[str]:
    """The figures as Markdown."""
    rows = [
        f"| {one.run} | {one.n_layers} x {one.n_columns:,} | {one.made_s:.1f} | {one.n_bytes / 1e6:.2f} | "
        f"{one.interactive_ms:.0f} |"
        for one in found
    ]
    return [
        "| run | shown: layers x columns | made in, s CPU | MB | usable after, ms |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"{machine()}, duckdb {version('duckdb')}, Chromium {browser}, headless; {date.today()}.",
    ]


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description="What a page of a run takes.")
    parser.add_argument("--check", action="store_true", help="exit 1 where a limit is missed")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table into this page")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium on the path: `make build/.chromium` installs Debian's", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        found = [measure(name, run, folder / "page.html", browser) for name, run in runs(folder)]
        lines = table(found, browser.version)
        browser.close()
    print("\n".join(lines))
    if arguments.markdown is not None:
        replace_section(arguments.markdown, "pages", lines)
    missed = [one.run for one in found if one.n_bytes >= MAX_BYTES or one.interactive_ms >= MAX_MS]
    if arguments.check and missed:
        print(f"limits missed: {', '.join(missed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
