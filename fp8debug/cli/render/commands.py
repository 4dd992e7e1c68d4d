"""Commands that a person can paste: every number of a report is a query away."""

from __future__ import annotations

import shlex

from fp8debug.analysis.parts import printable_text
from fp8debug.analysis.suspects import Suspect
from fp8debug.cli.render.tables import wrap


def operand_query(suspect: Suspect) -> str:
    """The SQL behind one suspect: its metrics at every sampled step."""
    return (
        "select step, recipe, sqnr_db, sqnr_low_db, underflow, gain, scale_gap_bits\n"
        "from tensor_errors\n"
        f"where layer = {printable_text(suspect.layer)}\n"
        f"  and tensor = {printable_text(suspect.tensor)}\n"
        "order by recipe, step, microbatch"
    )


def sql_command(run_path: str, query: str) -> str:
    """`fp8debug sql RUN "QUERY"`, the lines of the query indented under it."""
    lines = query.splitlines()
    quoted = [_in_double_quotes(line) for line in lines]
    return f'fp8debug sql {shlex.quote(run_path)} "\n  ' + "\n  ".join(quoted) + '"'


def fitted(command: str, width: int) -> list[str]:
    """The lines of a command, which a shell understands as before, those longer than `width` broken at blanks.

    What is quoted stays as it is, whatever its length.
    """
    lines: list[str] = []
    for line in command.splitlines():
        if len(line) <= width or "'" in line or '"' in line:
            lines.append(line)
        elif lines:  # of a query, whose blanks mean nothing
            lines += wrap(line.strip(), width, indent="  ", hanging="  ")
        else:
            *broken, last = wrap(line, width - 2, indent="", hanging="    ")
            lines += [*(f"{part} \\" for part in broken), last]
    return lines


def short_sql(run_path: str, query: str = "") -> str:
    """`fp8debug sql RUN "QUERY"` on one line; without a query, what lists the views."""
    return f"fp8debug sql {shlex.quote(run_path)}" + (f' "{query}"' if query else "")


def _in_double_quotes(text: str) -> str:
    """Escape what a POSIX shell would interpret inside double quotes."""
    return "".join(f"\\{c}" if c in '\\"$`' else c for c in text)
