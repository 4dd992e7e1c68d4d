"""Which run and which query the arguments of `fp8debug sql` mean."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.reading import read_text
from fp8debug.rundir import RunDir, find_run

STDIN = "-"

_QUERY_START = re.compile(
    r"\s*(--|/\*|\(|(select|from|with|describe|desc|summarize|show|explain|values|table|pivot|unpivot)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, of which run; `run` is None when only the views are to be listed and no run was named."""

    run: RunDir | None
    query: str | None


def find_question(first: str | None, second: str | None, file: str | None) -> Question:
    """Tell a run directory from a query: one argument alone may be either.

    Raises:
        UsageError: two queries, or an argument that is neither a run nor a query.
        Fp8DebugError: no such run, or an unreadable query file.
    """
    if file is not None:
        if second is not None:
            raise UsageError(f"two queries: one in --file {file} and {second!r}; give one of them")
        return Question(find_run(first), _read_query(file))
    if second is not None:
        return Question(find_run(first), _checked(sys.stdin.read() if second == STDIN else second))
    if first is None:
        return Question(None, None)
    if first == STDIN:
        return Question(find_run(None), _checked(sys.stdin.read()))
    if _is_url(first) or Path(first).is_dir():
        return Question(find_run(first), None)
    if _looks_like_query(first):
        return Question(find_run(None), first)
    raise _neither(first)


def _is_url(text: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]*://\S+$", text) is not None


def _looks_like_query(text: str) -> bool:
    return _QUERY_START.match(text) is not None or bool(re.search(r"\s", text.strip()) and "/" not in text.split()[0])


def _neither(text: str) -> Fp8DebugError:
    if "/" in text or text.startswith("."):
        return Fp8DebugError(f"no such run: {text}; `fp8debug runs` lists the runs there are")
    return UsageError(
        f"{text!r} is neither an existing run directory nor a query; expected for example "
        f'`fp8debug sql fp8debug-runs/latest "from candidates"`'
    )


def _read_query(file: str) -> str:
    if file == STDIN:
        return _checked(sys.stdin.read())
    try:
        return _checked(read_text(file))
    except (OSError, UnicodeDecodeError) as error:
        raise Fp8DebugError(f"cannot read the query file {file}: {error}") from error


def _checked(query: str) -> str:
    if not query.strip():
        raise UsageError("the query is empty; expected one SELECT, for example `from candidates`")
    return query
