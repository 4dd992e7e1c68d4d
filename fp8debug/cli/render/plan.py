"""What a plan does, and what a plan file would match, as text or JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fp8debug import __version__
from fp8debug.analysis.plans.departures import departures
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape, wrap
from fp8debug.cli.render.wording import count, listed, with_full_stop
from fp8debug.errors import some
from fp8debug.plans import BF16, Plan

if TYPE_CHECKING:
    from fp8debug.analysis.plans import Export
    from fp8debug.analysis.plans.check import Check, CheckedRule
    from fp8debug.analysis.remedies import Fallback

PLAN_VERSION = 1
_SHOWN_CLEAN = 10
_SAY = "fp8debug: "


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that was made for a run and written for a target."""

    target: str
    run_path: str
    plan: Plan
    """As it was made; its FLOPs are those that it keeps in low precision."""
    export: Export
    flops_kept: float | None
    """The same of what was written, which may be wider."""
    n_layers: int
    """Of the run."""
    fallback: Fallback | None
    """Where a target or a budget was given."""
    notice: str | None
    """Why there is nothing to plan for."""


# A plan that was made -------------------------------------------------------------------------------------------------


def plan_json(planned: Planned, output: str | None) -> str:
    """One object and a newline: what was planned, and what the target gets. `plan_version` rises as in `report`."""
    document = {
        "plan_version": PLAN_VERSION,
        "fp8debug_version": __version__,
        "path": planned.run_path,
        "for": planned.target,
        "output": output,
        "planned": asdict(planned.plan),
        "written": {**asdict(planned.export.plan), "flops_kept": planned.flops_kept},
        "notes": [asdict(note) for note in planned.export.notes],
        "fallback": None if planned.fallback is None else asdict(planned.fallback),
        "text": planned.export.text,
    }
    return document_text(document)


def plan_summary(planned: Planned, output: str | None) -> str:
    """Lines for standard error: what leaves the recipe, what stays in low precision, what was widened."""
    return "".join(f"{_SAY}{escape(line)}\n" for line in plan_lines(planned, output))


def plan_lines(planned: Planned, output: str | None) -> Iterator[str]:
    """What `plan_summary` says, line by line."""
    if planned.notice is not None:
        yield planned.notice
    wrote = f"wrote {output} for {planned.target}: " if output is not None else ""
    if not planned.export.plan.entries:
        yield f"{wrote}nothing to change{_why_nothing(planned)}"
    else:
        yield f"{wrote}{_out(planned.export.plan, planned.n_layers)}"
        if planned.flops_kept is not None:
            yield f"{_percent(planned.flops_kept)} of the GEMM FLOPs stay in low precision{_wider(planned)}"
    if planned.fallback is not None:
        yield from _told(planned.fallback)
    alike: dict[str, list[str]] = defaultdict(list)
    for note in planned.export.notes:
        alike[note.text] += [note.layer] if note.layer else []
    for text, layers in alike.items():
        yield with_full_stop(f"{some(layers)}: {text}" if layers else text)


def _out(plan: Plan, n_layers: int) -> str:
    """`3 of 22 layers change, the others stay in delayed: 1 layer in BF16 and 2 in part`."""
    found = departures(plan, ())
    whole = [departure for departure in found if departure.whole is not None]
    in_bf16 = sum(departure.whole == BF16 for departure in whole)
    parts = [
        text
        for number, text in (
            (in_bf16, f"{count(in_bf16, 'layer')} in BF16"),
            (len(whole) - in_bf16, f"{count(len(whole) - in_bf16, 'layer')} in another recipe"),
            (len(found) - len(whole), f"{count(len(found) - len(whole), 'layer')} in part"),
        )
        if number
    ]
    return f"{len(found):,} of {count(n_layers, 'layer')} change, the others stay in {plan.recipe}: {listed(parts)}"


def _why_nothing(planned: Planned) -> str:
    if planned.notice is not None or planned.fallback is not None or planned.plan.entries:
        return ""
    return f": no operand that was recorded is outside the rules under {planned.plan.recipe}"


def _wider(planned: Planned) -> str:
    before = planned.plan.flops_kept
    if before is None or planned.flops_kept is None or abs(before - planned.flops_kept) < 5e-5:
        return ""
    return f"; {_percent(before)} where all of the plan can be said"


def _told(fallback: Fallback) -> Iterator[str]:
    if fallback.sqnr_db_before is not None:
        after = "no noise is left" if fallback.sqnr_db_after is None else f"{fallback.sqnr_db_after:.1f} dB after"
        yield f"SQNR of all GEMMs together: {fallback.sqnr_db_before:.1f} dB before, {after}"
    if not fallback.reached:
        yield "the target is not reached"
    if fallback.note:
        yield fallback.note


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# A plan file held against layers --------------------------------------------------------------------------------------


def check_json(found: Check, file: str, source: str) -> str:
    """One object and a newline, complete."""
    document = {
        "check_version": PLAN_VERSION,
        "fp8debug_version": __version__,
        "file": file,
        "source": source,
        "is_clean": found.is_clean,
        **asdict(found),
    }
    return document_text(document)


def render_check(found: Check, looks: Looks, *, file: str, source: str) -> str:
    """The whole answer, ending in a newline: entries that do not match as meant first."""
    return "\n".join(_check_lines(found, looks, file, source)) + "\n"


def _check_lines(found: Check, looks: Looks, file: str, source: str) -> Iterator[str]:
    yield looks.bold(f"CHECK {escape(file)}")
    entries = count(len(found.rules), "entry", "entries")
    yield from wrap(f"A plan for {found.format}, {entries}, held against {escape(source)}.", looks.width)
    if found.format == "te":
        yield from wrap("Layers are shown by the names that Transformer Engine's debug API has for them.", looks.width)
    bad = [rule for rule in found.rules if not rule.is_clean]
    good = [rule for rule in found.rules if rule.is_clean]
    for rule in (*bad, *good[:_SHOWN_CLEAN]):
        yield ""
        yield from _rule_lines(rule, found, looks)
    if len(good) > _SHOWN_CLEAN:
        yield ""
        yield from wrap(f"{len(good) - _SHOWN_CLEAN} more match as meant; --json lists them.", looks.width)
    for problem in found.problems:
        yield ""
        yield from _wrapped(looks.red("problem"), with_full_stop(problem), looks, "  ")
    yield ""
    n, left = len(found.paths), found.left
    stay = f"{len(left):,} of {count(n, 'layer')} stay in the recipe of the rest"
    yield from wrap(f"{stay}: {_names(left, found)}." if left else f"{stay}.", looks.width)


def _rule_lines(rule: CheckedRule, found: Check, looks: Looks) -> Iterator[str]:
    yield f"  {escape(rule.text)}{looks.dim(f'  ({escape(rule.place)})') if rule.place else ''}"
    if not rule.matched:
        near = f"; nearest: {listed([escape(n) for n in rule.nearest], 'or')}" if rule.nearest else ""
        yield from _wrapped(looks.red("matches nothing"), near.removeprefix("; "), looks)
        return
    does = f"{count(len(rule.matched), 'layer')}, {escape(rule.does)}"
    yield from _wrapped(looks.green(does) if rule.is_clean else does, _names(rule.matched, found), looks)
    if rule.beyond:
        yield from _wrapped(looks.red("more than meant"), _names(rule.beyond, found), looks)
    if rule.note:
        yield from _wrapped(looks.red("no effect"), with_full_stop(rule.note), looks)


def _wrapped(label: str, text: str, looks: Looks, indent: str = "    ") -> Iterator[str]:
    yield from wrap(f"{label}: {escape(text)}" if text else label, looks.width, indent=indent)


def _names(names: tuple[str, ...], found: Check) -> str:
    shown = [found.paths[name] for name in names] if found.format == "te" else list(names)
    return some([escape(name) for name in shown])
