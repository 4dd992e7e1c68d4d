"""`fp8debug rules`: list the rules that findings come from."""

from __future__ import annotations

from typing import Annotated

import typer


def rules(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this rule in full.")] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="Take rules and thresholds from FILE. [nearest fp8debug.toml]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the rules that findings come from, and their numbers.

    Exit codes: 0 done, 2 wrong usage.
    """
    import sys

    from fp8debug.cli.render.rules import render_rule, render_rules, rules_json
    from fp8debug.cli.render.stream import looks_of, write_stdout
    from fp8debug.cli.rule_choice import rule_choice

    chosen = rule_choice(config)
    book = chosen.rules()
    shown = (*book.rules, *book.disabled) if name is None else (book[name],)
    if as_json:
        sys.stdout.write(rules_json(shown, chosen.thresholds))
        return
    looks = looks_of(sys.stdout)
    if name is None:
        write_stdout(render_rules(shown, looks))
    else:
        write_stdout(render_rule(shown[0], chosen.thresholds, looks))
