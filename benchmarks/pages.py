"""What the benchmarks that write tables into pages share."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path


def machine() -> str:
    """Processor, cores and Python of this machine."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def replace_section(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` of a page.

    Raises:
        ValueError: the page lacks one of them.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{page}: expected the comments <!-- {name} --> and <!-- /{name} -->")
    page.write_text(before + begin + "".join(f"{line}\n" for line in lines) + end + after, encoding="utf-8")
