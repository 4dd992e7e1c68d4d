"""Make docs/images/report.svg: the report over sample_dumps/smollm2 as a terminal shows it.

python docs/picture.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fp8debug.analysis.report import build_report
from fp8debug.analysis.run import open_run
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.terminal import render_report

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "report.svg"
RUN = "sample_dumps/smollm2"
WIDTH = 80


def draw() -> str:
    """The report as SVG, without a font that would be fetched from somewhere."""
    with open_run(ROOT / RUN) as run:
        report = build_report(run, top=3)
    text = render_report(report, Looks(width=WIDTH, colour=True), run_path=RUN)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text), soft_wrap=True)
    svg = console.export_svg(title=f"fp8debug report {RUN}", unique_id="report")
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"Wrote {PICTURE.relative_to(ROOT)}")
