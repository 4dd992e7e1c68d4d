"""What makes the pages a site: folders in the navigation, and links to files that are not on the site.

Called by mkdocs (`hooks:` in mkdocs.yml); the pages themselves are written for readers of the repository too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each `folder/` of the navigation by the pages of the folder."""
    if config.nav is not None:
        config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name files of the repository that are not on the site by their path; a link to them would lead nowhere.

    A page without sections has no table of contents.
    """
    if "\n## " not in markdown:
        page.meta["hide"] = ["toc"]  # it would be empty, and what is here is a wide table
    folder = posixpath.dirname(page.file.src_uri)
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(lambda link: _on_site(link, folder), part) for part in parts[::2]]
    return "".join(parts)


def _expanded(entries: list[Any], docs: Path) -> list[Any]:
    """The same entries; a folder that stands alone becomes its pages, a named one a section of them."""
    made: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and entry.endswith("/"):
            made += _pages_of(entry, docs)
        elif isinstance(entry, dict):
            made.append({title: _section(content, docs) for title, content in entry.items()})
        else:
            made.append(entry)
    return made


def _section(content: Any, docs: Path) -> Any:
    if isinstance(content, str) and content.endswith("/"):
        return _pages_of(content, docs)
    return _expanded(content, docs) if isinstance(content, list) else content


def _pages_of(folder: str, docs: Path) -> list[str]:
    """Its README.md, then the pages in the order in which that names them, then the others by name."""
    index = docs / folder / "README.md"
    first = (
        ["README.md", *re.findall(r"\]\(([\w-]+\.md)\)", index.read_text(encoding="utf-8"))] if index.exists() else []
    )
    names = sorted(path.name for path in (docs / folder).glob("*.md"))
    return [
        folder + name for name in sorted(names, key=lambda name: first.index(name) if name in first else len(first))
    ]


def _on_site(link: re.Match[str], folder: str) -> str:
    text, target = link[1], link[2]
    path = posixpath.normpath(posixpath.join("docs", folder, target))
    if "://" in target or (path.startswith("docs/") and path != "docs/README.md"):
        return link[0]
    named = "<code>" + re.sub("([/_])", r"\1<wbr>", path) + "</code>"  # in a narrow column it may be broken there
    return named if text.strip("`") in path else f"{text} ({named})"
