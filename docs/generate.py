"""Write the pages that follow from the code: schema.md, views.md, cli.md, captured.md, rules/, parts of diagnosis.md
and of the pages in errors/.

    python docs/generate.py            # write them
    python docs/generate.py --check    # say which differ from what would be written; exit 1 when any does

Nothing is listed here: tables come from `fp8debug.schema`, views, macros and rules from the shipped .sql files, verbs
and their options from the command line itself, what is captured where from the tests that prove it, messages of errors
from the source.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import checkpoint_pages
import dialect_pages
import error_pages

from fp8debug import schema
from fp8debug.analysis import open_run
from fp8debug.analysis.diagnosis import Rule, load_rules
from fp8debug.analysis.listing import ViewInfo, macros, views_with_columns
from fp8debug.analysis.thresholds import THRESHOLDS
from fp8debug.analysis.views import sql_files
from fp8debug.cli.exit_codes import ExitCode
from fp8debug.cli.main import VERBS
from fp8debug.cli.main import main as fp8debug
from fp8debug.rundir import Manifest, RunDir

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/generate.py: change the source it names, then run `make docs`. -->\n"


def main() -> int:
    """Write or check the pages; the exit code."""
    parser = argparse.ArgumentParser(description="Write the documentation pages that follow from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is out of date")
    check = parser.parse_args().check
    texts = pages()
    stale = {name: text for name, text in texts.items() if not _is_current(DOCS / name, text)}
    gone = [path for path in (DOCS / "rules").glob("*.md") if f"rules/{path.name}" not in texts]
    for name, text in stale.items():
        if check:
            print(f"docs/{name} is out of date: run `make docs`", file=sys.stderr)
        else:
            (DOCS / name).parent.mkdir(exist_ok=True)
            (DOCS / name).write_text(text, encoding="utf-8")
            print(f"Wrote docs/{name}")
    for path in gone:
        if check:
            print(f"docs/rules/{path.name} is of no rule: run `make docs`", file=sys.stderr)
        else:
            path.unlink()
            print(f"Removed docs/rules/{path.name}")
    return 1 if check and (stale or gone) else 0


def pages() -> dict[str, str]:
    """File name below docs/ -> its whole text."""
    rules = {f"rules/{rule.name}.md": rule_page(rule) for rule in load_rules()}
    generated = {
        "schema.md": schema_page(), "views.md": views_page(), "cli.md": cli_page(), "captured.md": captured_page()
    }  # fmt: skip
    return {**generated, **rules, **error_pages.pages(), **_checkpoint_pages(), "diagnosis.md": diagnosis_page()}


def _checkpoint_pages() -> dict[str, str]:
    return {**checkpoint_pages.pages(NOTE), **dialect_pages.pages(NOTE)}


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


# What is captured where -------------------------------------------------------------------------------------------

_DECLARED = ("case", "how", "sees", "limits")


def captured_page() -> str:
    """What is seen in which training, as declared by the tests that prove it."""
    rows = sorted(_declared(), key=lambda row: [cell.casefold() for cell in row])
    return (
        f"# What is captured where\n\n{NOTE}\n"
        "Each row is declared by the test that proves it (`@pytest.mark.captures` in `tests/`), and that test runs "
        "with every change. Whatever cannot be seen is said while the training runs, and is a row of the view "
        "`events`.\n\n"
        + _table(("training", "reached by", "what is recorded", "what is not, and how that is said", "test"), rows)
    )


def _declared() -> Iterator[tuple[str, ...]]:
    for path in sorted((DOCS.parent / "tests").rglob("test_*.py")):
        if "mark.captures" not in (text := path.read_text(encoding="utf-8")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.captures":
                given = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
                place = path.relative_to(DOCS.parent).as_posix()
                yield (*(given[name] for name in _DECLARED), f"[{path.stem.removeprefix('test_')}](../{place})")


# Stored tables ----------------------------------------------------------------------------------------------------


def schema_page() -> str:
    """The Parquet tables of a run directory."""
    key = [column.name for column in schema.RECORD_KEY]
    parts = [
        f"# Stored tables\n\n{NOTE}\n"
        f"What the Parquet files of a run directory hold, schema version {schema.SCHEMA_VERSION}; the source is "
        "`fp8debug/schema.py`. Each table is `<table>/rank=<R>/part-<NNNNNN>.parquet`, compressed with zstd. "
        "In SQL a table is read through the view of its name ([views.md](views.md)), which keeps the last segment that "
        "wrote a step.\n\n"
        f"The *record key* is {', '.join(f'`{name}`' for name in key)}.\n"
    ]
    for table in schema.TABLES.values():
        rows = ((column.name, f"`{column.type}`", column.meaning, column.unit) for column in table.columns)
        parts.append(f"\n## `{table.name}`\n\n{_sentence(table.meaning)}\n\n" + _table(_COLUMNS, rows))
    return "".join(parts)


# Views and macros -------------------------------------------------------------------------------------------------


def views_page() -> str:
    """The views and macros a run is opened with, and the numbers the rules compare with."""
    with tempfile.TemporaryDirectory() as folder:
        views = views_of_empty_run(Path(folder))
    called = ((f"`{'from ' if macro.is_table else ''}{macro.signature}`", _prose(macro.name)) for macro in macros())
    numbers = ((f"`{t.name}`", f"{t.default:.4g}", t.meaning, t.source) for t in THRESHOLDS.values())
    return (
        f"# Views and macros\n\n{NOTE}\n"
        "What `fp8debug sql` and `fp8debug.open_run` offer. Each is one file of `fp8debug/analysis/sql/`, to be read "
        "and copied from.\n"
        "\n## Views\n"
        + "".join(map(_view_section, views))
        + "\n## Macros\n\n"
        + _table(("macro", "meaning"), called)
        + "\n## Thresholds\n\nThe rules behind `candidates` and `watch` compare with these numbers. In SQL one is "
        "`getvariable('<name>')`; `open_run(path, thresholds={…})` replaces it.\n\n"
        + _table(("name", "default", "meaning", "why this number"), numbers)
    )


def views_of_empty_run(folder: Path) -> list[ViewInfo]:
    """The views of a run without records: they all exist, with their columns and types."""
    RunDir(folder).write_manifest(Manifest(run_id="docs", command=[], created_at=""))
    with open_run(folder) as run:
        return views_with_columns(run.con)


def _view_section(view: ViewInfo) -> str:
    stored = schema.TABLES[view.name].column_names if view.name in schema.TABLES else ()
    own = [column for column in view.columns if column.name not in stored]
    text = f"\n### `{view.name}`\n\n{_prose(view.name)}\n"
    if stored:
        text += f"\nColumns of the stored table [`{view.name}`](schema.md#{view.name}){', and:' if own else '.'}\n"
    if own:
        text += "\n" + _table(_COLUMNS, ((c.name, f"`{c.type.lower()}`", c.meaning, c.unit) for c in own))
    return text


def _prose(name: str) -> str:
    """The comment at the head of a view's or macro's file, without the lines that describe columns."""
    file = sql_files()[name]
    head = file.text.partition("create or replace ")[0]
    lines = [line.removeprefix("--").strip() for line in head.splitlines() if line.startswith("--")]
    return _sentence(" ".join(line for line in lines if line.partition(": ")[0] not in file.column_meanings))


# Rules ------------------------------------------------------------------------------------------------------------

_PART = re.compile(r"(?<=<!-- rules: begin -->\n).*(?=<!-- rules: end -->)", re.DOTALL)


def diagnosis_page() -> str:
    """The page as it is, with its table of rules anew."""
    rows = (
        (
            _joined(rule.symptom),
            f"[`{rule.name}`](rules/{rule.name}.md) ({rule.severity}): {_says(rule)}",
            _first_sentences(rule.why or rule.meaning),
            _joined(rule.advice),
        )
        for rule in load_rules()
    )
    table = _table(("symptom", "what fp8debug says", "why", "what to do"), rows)
    return _PART.sub(lambda _: f"\n{table}\n", (DOCS / "diagnosis.md").read_text(encoding="utf-8"))


def rule_page(rule: Rule) -> str:
    """One rule, for a person who got a finding of it."""
    parameters = (
        (f"`{name}`", f"{p.default:g}", p.unit, p.meaning, p.source) for name, p in (rule.parameters or {}).items()
    )
    numbers = (
        (f"`{t.name}`", f"{t.default:.4g}", t.meaning, t.source) for t in map(THRESHOLDS.__getitem__, rule.thresholds)
    )
    evidence = ((entry.title, _placeholders(entry.healthy)) for entry in rule.evidence)
    parts = [
        f"# `{rule.name}`\n\n{NOTE}\n{_sentence(rule.meaning)}\n\n"
        f"Severity: **{rule.severity}**. Confidence: {rule.confidence.replace('_', ' ')}. What these mean: "
        f"[diagnosis.md](../diagnosis.md).\n{_quoted(rule)}",
        f"\n## What is seen\n\n{_sentence(_joined(rule.symptom))}\n" if rule.symptom else "",
        f"\n## Why it matters\n\n{rule.why.strip()}\n" if rule.why else "",
        f"\n## What to do\n\n{_joined(rule.advice)}\n",
        "\n## Evidence\n\n" + _table(("number", "in a healthy run"), evidence) if rule.evidence else "",
        "\n## Numbers\n" if rule.parameters or rule.thresholds else "",
        "\nParameters of this rule:\n\n" + _table(("name", "default", "unit", "meaning", "why this number"), parameters)
        if rule.parameters else "",
        "\nThresholds that it shares with other rules, [as listed](../views.md#thresholds):\n\n"
        + _table(("name", "default", "meaning", "why this number"), numbers) if rule.thresholds else "",
        f"\n## What it explains\n\nFindings of {_links(rule)} for the same operand follow from it and are not told.\n"
        if rule.explains else "",
        f"\n## Query\n\nOne row is one place. `$name` is a parameter.\n\n```sql\n{rule.sql.strip()}\n```\n",
        f"\n## To change it\n\nIn `fp8debug.toml`:\n\n```toml\n{_as_settings(rule)}```\n",
    ]  # fmt: skip
    return "".join(parts)


def _as_settings(rule: Rule) -> str:
    """What a configuration file may say of the rule, with what holds anyway."""
    lines = [f"[rules.{rule.name}]", f'severity = "{rule.severity}"', "enabled = true  # false: it is not asked"]
    lines += [f"{name} = {p.default:g}" for name, p in (rule.parameters or {}).items()]
    if rule.thresholds:
        first = THRESHOLDS[rule.thresholds[0]]
        lines += ["", "[thresholds]", f"{first.name} = {first.default:.4g}"]
    return "\n".join(lines) + "\n"


def _links(rule: Rule) -> str:
    return ", ".join(f"[`{name}`]({name}.md)" for name in rule.explains)


def _says(rule: Rule) -> str:
    """Its sentence; what it finds, where the query writes most of the sentence."""
    return _placeholders(_joined(rule.sentence)) if _has_words(rule) else _joined(rule.meaning)


def _quoted(rule: Rule) -> str:
    return f"\nIt says:\n\n> {_says(rule)}\n" if _has_words(rule) else ""


def _has_words(rule: Rule) -> bool:
    return len(re.sub(r"\{[^}]*\}", "", rule.sentence)) > 25


def _placeholders(template: str) -> str:
    """`{db_lost:.1f}` as *db_lost*."""
    return re.sub(r"(\w?)\{(\w+)[^}]*\}", lambda m: f"{m[1]}{' ' if m[1] else ''}*{m[2]}*", template)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _first_sentences(text: str) -> str:
    return _sentence(" ".join(re.split(r"(?<=[.!?]) (?=[A-Z`])", _joined(text))[:2]))


# The command line -------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """What each verb's `--help` prints."""
    verbs = [verb.name for verb in VERBS if not verb.hidden]
    exit_codes = (
        f"Exit codes: {ExitCode.DONE:d} done, {ExitCode.FAILED:d} it could not be done, {ExitCode.USAGE:d} wrong "
        f"usage, {ExitCode.FAIL_ON:d} done and the condition of `--fail-on` holds. `attach` passes on the script's own."
    )
    return f"# Command line\n\n{NOTE}\n{exit_codes}\n" + "".join(_help(verb) for verb in ("", *verbs))


def _help(verb: str) -> str:
    """The section of a verb, or of the command itself where it is empty."""
    # A terminal of known width: the pages must not depend on whose terminal it is.
    os.environ.update(COLUMNS="100", TERM="dumb", NO_COLOR="1")
    with redirect_stdout(StringIO()) as printed:
        code = fp8debug([*verb.split(), "--help"])
    if code != ExitCode.DONE:
        raise SystemExit(f"fp8debug {verb} --help failed with exit code {code}")
    lines = "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())
    return f"\n## `fp8debug{' ' if verb else ''}{verb}`\n\n```text\n{lines}\n```\n"


# Markdown ---------------------------------------------------------------------------------------------------------

_COLUMNS = ("column", "type", "meaning", "unit")


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; columns that are empty in every row are left out."""
    names, cells = list(header), [[_escape(cell) for cell in row] for row in rows]
    kept = [i for i in range(len(names)) if any(row[i] for row in cells)]
    return "".join(_lines([names[i] for i in kept], [[row[i] for i in kept] for row in cells]))


def _lines(names: list[str], cells: list[list[str]]) -> Iterator[str]:
    for row in (names, ["---"] * len(names), *cells):
        yield f"| {' | '.join(row)} |\n"


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


if __name__ == "__main__":
    sys.exit(main())
