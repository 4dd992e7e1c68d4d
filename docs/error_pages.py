"""The pages of errors: on which page each message is explained.

A page `errors/<topic>.md` is written by hand but for its list of messages. `errors/topics.toml` says which modules and
messages belong to which topic.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from error_messages import sites

DOCS = Path(__file__).resolve().parent
TOPICS = DOCS / "errors" / "topics.toml"

_PART = re.compile(r"(?<=<!-- messages: begin -->\n).*(?=<!-- messages: end -->)", re.DOTALL)


@cache
def topics() -> dict[str, list[str]]:
    """Topic -> its entries: `module`, `folder/`, or either with `: how the message begins`."""
    read: dict[str, list[str]] = tomllib.loads(TOPICS.read_text(encoding="utf-8"))
    return read


def topic_of(module: str, text: str = "") -> str | None:
    """The topic of a message of `module`: of the longest entry that fits, None where none does."""
    fitting = [
        (len(entry), topic)
        for topic, entries in topics().items()
        for entry in entries
        if _fits(entry, module, text)
    ]  # fmt: skip
    return max(fitting)[1] if fitting else None


def pages() -> dict[str, str]:
    """File name below docs/ -> its whole text, for the topics and the list of them."""
    by_topic: dict[str, dict[str, dict[str, None]]] = {topic: {} for topic in topics()}
    for site in sites():
        for text in site.texts:
            if topic := topic_of(site.module, text):
                by_topic[topic].setdefault(site.module, {})[text] = None
    made = {f"errors/{topic}.md": _filled(topic, _listed(modules)) for topic, modules in by_topic.items()}
    rows = "".join(f"| [{_title(topic)}]({topic}.md) | {_first_sentence(topic)} |\n" for topic in by_topic)
    return {**made, "errors/README.md": _filled("README", f"\n| page | what it is about |\n| --- | --- |\n{rows}\n")}


def _filled(name: str, part: str) -> str:
    return _PART.sub(lambda _: part, (DOCS / "errors" / f"{name}.md").read_text(encoding="utf-8"))


def _listed(modules: dict[str, dict[str, None]]) -> str:
    sections = (
        f"\nFrom `fp8debug/{module}`:\n\n" + "".join(f"* {_code(text)}\n" for text in texts)
        for module, texts in modules.items()
    )
    return "".join(sections) + "\n"


def _code(text: str) -> str:
    """As code, whatever backticks it has."""
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _title(topic: str) -> str:
    return (DOCS / "errors" / f"{topic}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _first_sentence(topic: str) -> str:
    paragraph = (DOCS / "errors" / f"{topic}.md").read_text(encoding="utf-8").split("\n\n")[1]
    return re.split(r"(?<=[.?]) (?=[A-Z])", " ".join(paragraph.split()))[0]


def _fits(entry: str, module: str, text: str) -> bool:
    place, _, beginning = entry.partition(": ")
    return text.startswith(beginning) and (module == place or (place.endswith("/") and module.startswith(place)))
