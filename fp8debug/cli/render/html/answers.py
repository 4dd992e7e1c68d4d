"""What other recipes would do, what mends what was found, and the plan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fp8debug.analysis.plans import TARGETS
from fp8debug.analysis.remedies import Remedy
from fp8debug.analysis.report import Report
from fp8debug.analysis.whatif import WhatIf
from fp8debug.cli.render.html.elements import (
    NOTHING,
    Markup,
    cell,
    code_block,
    column,
    element,
    framed,
    items,
    joined,
    number,
    prose,
    row_head,
    table,
    text,
)
from fp8debug.cli.render.html.links import Cells
from fp8debug.cli.render.matrix import Cell, Group
from fp8debug.cli.render.plan import Planned, plan_lines
from fp8debug.cli.render.remedies import HEADER, trial_cells, trial_note
from fp8debug.cli.render.whatif import whatif_facts
from fp8debug.cli.render.whatif_figures import figures
from fp8debug.cli.render.wording import with_full_stop

_ENDINGS = {"fp8debug": "toml", "torchtitan": "toml", "te": "yaml", "megatron": "yaml"}
_MODULE = "py"
_MARKS = (
    "Marked !: below what rounding alone can cost, or a gain that rounding cannot reach. Bold: over 5 % become zero, "
    "or over 0.1 % are clipped."
)


def whatif_body(answer: WhatIf | None, why_not: str, run_path: str) -> Markup:
    """Recipes are rows, operands and GEMMs columns: the figures of `fp8debug whatif`."""
    if answer is None:
        return element("p", prose(why_not))
    command = code_block(f"fp8debug whatif {shlex.quote(run_path)} --per layer", "copy")
    recipes, groups = figures(answer, answer.operands, answer.gemms, whole=True)
    facts = " ".join(whatif_facts(answer))
    return joined(
        [
            element("p", text(facts)),
            element("p", text(_MARKS)),
            framed(_matrix(recipes, groups), "What other recipes would do"),
            items(_note(note.message, note.command) for note in answer.notes),
            element("p", text("The same layer by layer, worst first:")),
            command,
        ]
    )


def _note(message: str, command: str | None) -> Markup:
    if not command:
        return prose(with_full_stop(message))
    return joined([prose(f"{message}; this records it:"), code_block(command, "copy")])


def _matrix(recipes: Sequence[str], groups: Sequence[Group]) -> Markup:
    titles = [element("th", text(g.title), scope="colgroup", colspan=str(len(g.heads)), class_="group") for g in groups]
    heads = [column(head, is_number=True) for group in groups for head in group.heads]
    corner = element("th", text("recipe"), scope="col", rowspan="2")
    rows = [
        element("tr", row_head(text(recipe)), *(_figure(shown) for group in groups for shown in group.rows[i]))
        for i, recipe in enumerate(recipes)
    ]
    head = element("thead", element("tr", corner, *titles), element("tr", *heads))
    return element("table", head, element("tbody", *rows), class_="matrix")


def _figure(shown: Cell) -> Markup:
    if shown.is_bad:
        return number(f"! {shown.text}", class_="bad")
    return number(shown.text, class_="odd" if shown.is_odd else "")


def remedies_body(report: Report, cells: Cells) -> Markup:
    """What was tried for each candidate that is shown, the cheapest change first."""
    if not report.remedies:
        return NOTHING
    intro = "What was tried for each candidate, cheapest first, up to the first change that fixes it."
    return joined([element("p", text(intro)), *(_remedy(remedy, cells) for remedy in report.remedies)])


def _remedy(remedy: Remedy, cells: Cells) -> Markup:
    title, *numbers = HEADER
    head = [column(title), column(numbers[0]), *(column(name, is_number=True) for name in numbers[1:]), column("")]
    rows = []
    for trial in (remedy.present, *remedy.trials):
        first, outcome, *figures_ = trial_cells(trial)
        fixes = "good" if trial.outcome == "fixes" else None
        words = element("td", text(outcome), class_=fixes)
        rows.append([row_head(text(first)), words, *(number(f) for f in figures_), cell(prose(trial_note(trial)))])
    caption = joined([cells.link(remedy.layer, remedy.tensor), text(f", now {remedy.recipe}")])
    return table("What was tried", head, rows, caption=caption)


def plan_body(planned: Planned | None, why_not: str, run_path: str) -> Markup:
    """What the plan does, the plan itself, and the commands that write it for a framework."""
    if planned is None:
        return element("p", prose(why_not))
    said = [element("p", text(with_full_stop(_begun(line)))) for line in plan_lines(planned, None)]
    if not planned.export.plan.entries:
        return joined(said)
    run = shlex.quote(run_path)
    commands = [f"fp8debug plan {run} --for {target} -o plan.{_ENDINGS.get(target, _MODULE)}" for target in TARGETS]
    return joined(
        [
            *said,
            code_block(planned.export.text.rstrip("\n"), "copy"),
            element("p", text("Written to a file, for fp8debug itself or a framework, by one of:")),
            code_block("\n".join(commands), "copy"),
        ]
    )


def _begun(line: str) -> str:
    """With a capital, unless it begins with a name."""
    return line[:1].upper() + line[1:] if line.partition(" ")[0].isalpha() else line
