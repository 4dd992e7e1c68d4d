"""The SQL behind what a page says, to paste into `fp8debug sql`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fp8debug.analysis.diagnosis import RuleBook, load_rules
from fp8debug.analysis.diagnosis.rule import Rule
from fp8debug.analysis.page.records import PageRun, Query
from fp8debug.analysis.report import Report
from fp8debug.analysis.whatif import WhatIf

_WHATIF = """
select layer, tensor, step, fmt, scale, sqnr_db, underflow, overflow, gain
from whatif_current('{fmt}')
where tensor in ({tensors})
order by sqnr_db
""".strip()
_PARAMETER = re.compile(r"\$(\w+)")


def queries(report: Report, shown: PageRun, whatif: WhatIf | None, rules: RuleBook | None = None) -> tuple[Query, ...]:
    """The queries of all sections but those that planes and distributions carry themselves.

    Args:
        report: of the run.
        shown: the run as the page shows it.
        whatif: recipes side by side, where they are shown.
        rules: what the report's findings come from; None: the rules as they are shipped.
    """
    return tuple(_queries(report, shown, whatif, rules or load_rules()))


def _queries(report: Report, shown: PageRun, whatif: WhatIf | None, rules: RuleBook) -> Iterator[Query]:
    by_name = {rule.name: rule for rule in rules}
    for name in dict.fromkeys(finding.rule for finding in report.findings):
        if name in by_name:
            rule = by_name[name]
            yield Query(f"Finding {name}: {rule.meaning}", _filled_in(rule))
    if report.n_candidates:
        yield Query("Candidates for BF16", "from candidates")
    if report.n_watch:
        yield Query("Watch list", "from watch")
    if report.n_isolated_hits:
        yield Query("Steps that hit too seldom to count", "from isolated_hits order by step, recipe")
    if shown.training is not None:
        yield Query("Loss, gradient norm and learning rate", shown.training.sql)
    if whatif is not None and whatif.n_histograms:
        tensors = [tensor for tensor in whatif.tensors if tensor in ("x", "w", "dy")]
        for fmt, of_fmt in (("E4M3", [t for t in tensors if t != "dy"]), ("E5M2", [t for t in tensors if t == "dy"])):
            if of_fmt:
                words = ", ".join(f"'{tensor}'" for tensor in of_fmt)
                title = f"What current scaling in {fmt} would do to each record of {' and '.join(of_fmt)}"
                yield Query(title, _WHATIF.format(fmt=fmt, tensors=words))
    yield Query("All recipes, over the whole run", "from layer_summary order by recipe, layer, tensor")
    yield Query("What went wrong while recording", "from events order by step nulls first, unix_s")


def _filled_in(rule: Rule) -> str:
    """The rule's query with its numbers in it."""
    numbers = rule.arguments

    def number(match: re.Match[str]) -> str:
        return repr(float(numbers[match[1]])) if match[1] in numbers else match[0]

    return _PARAMETER.sub(number, rule.sql).strip()
