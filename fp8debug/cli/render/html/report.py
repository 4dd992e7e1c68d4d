"""The page of one run."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.page.records import ReportPage
from fp8debug.analysis.report import Report
from fp8debug.cli.render.findings import findings_counted
from fp8debug.cli.render.html.answers import plan_body, remedies_body, whatif_body
from fp8debug.cli.render.html.data import PageData
from fp8debug.cli.render.html.document import Document, Section, mount, write
from fp8debug.cli.render.html.elements import Markup, element, joined, text
from fp8debug.cli.render.html.facts import facts_body, fine_body, next_body, problems_body, queries_body
from fp8debug.cli.render.html.findings import findings_body, isolated_body
from fp8debug.cli.render.html.links import Cells, links_of
from fp8debug.cli.render.html.operands import candidates_body, watch_body
from fp8debug.cli.render.plan import Planned
from fp8debug.cli.render.run_facts import verdict_text
from fp8debug.cli.render.wording import count
from fp8debug.errors import escape

HEATMAP_HELP = (
    "Each row is a layer, in the order of the model, each column a step or a few. Strong colours are bad: cold ones "
    "for too small, warm ones for too large. Hatched: nothing known. A click on a cell, or Enter, opens its layer."
)
LAYER_HELP = "One tensor of one layer over the steps, and how its values are spread."
TRAINING_HELP = "What the training reported of itself. Spikes are marked, with the tensors that moved around them."


@dataclass(frozen=True, slots=True)
class Answered:
    """What was worked out beside the report, or why not."""

    planned: Planned | None
    no_plan: str = ""
    no_whatif: str = ""
    notes: tuple[str, ...] = ()


def report_html(page: ReportPage, answered: Answered, *, run_path: str) -> str:
    """The whole page, ending in a newline. `run_path` is how the commands name the run."""
    report = page.report
    name = report.run.name or page.run.name
    cells = Cells.of([page.run], [metric.name for metric in page.metrics])
    sections = [
        Section("findings", "Findings", findings_body(report, cells)),
        Section("candidates", "Candidates for BF16", candidates_body(report, cells)),
        Section("heatmap-section", "Layers over steps", mount("heatmap", HEATMAP_HELP)),
        Section("layer-section", "One layer", mount("layer", LAYER_HELP)),
        Section("training-section", "Training", mount("training", TRAINING_HELP)),
        Section("watch", "Watch: effect on the loss unknown", watch_body(report, cells)),
        Section("what-if", "What other recipes would do", whatif_body(page.whatif, answered.no_whatif, run_path)),
        Section("remedies", "Remedies", remedies_body(report, cells)),
        Section("plan", "Plan", plan_body(answered.planned, answered.no_plan, run_path)),
        Section("fine", "What is fine", fine_body(report)),
        Section("isolated", "Isolated hits", isolated_body(report)),
        Section("problems", "What went wrong or is missing", problems_body(report)),
        Section("run", "The run", facts_body(report)),
        Section("next", "Next", next_body(report, run_path)),
        Section("queries", "The SQL behind this page", queries_body(page.queries, run_path)),
    ]
    data = PageData("report", page.metrics, page.formats, (page.run,), tuple(links_of(report, cells)))
    title = f"{escape(name)}: {verdict_text(report)} - fp8debug"
    return write(Document(title, _head(report, name), sections, answered.notes, data))


def _head(report: Report, name: str) -> Markup:
    verdict = element("p", element("strong", text(headline(report))), class_=f"verdict {report.verdict}")
    return joined([element("h1", text(f"{name}: FP8 report")), verdict])


def headline(report: Report) -> str:
    """The verdict as one sentence."""
    candidates = count(report.n_candidates, "operand") if report.n_candidates else ""
    match report.verdict:
        case "findings":
            more = f"; {candidates} should fall back to BF16" if candidates else ""
            return f"Something is wrong: {findings_counted(report)}{more}."
        case "candidates":
            return f"No error and no warning, but {candidates} should fall back to BF16."
        case "none":
            known = f"; {count(report.n_findings, 'thing')} to know of" if report.n_findings else ""
            return f"Nothing is wrong: all operands that were judged hold in FP8{known}."
        case _:
            return "Not enough evidence for a verdict."
