"""What would mend an operand: one line in a finding, and the whole table of what was tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8debug.analysis.diagnosis import Finding
from fp8debug.analysis.remedies import Remedy, Trial
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import columns, escape, wrap
from fp8debug.cli.render.wording import METRICS, listed, operand

_INDENT = " " * 2
_KINDS = {
    "in_use": "as it is",
    "margin": "margin",
    "history": "history length",
    "most_recent": "most recent amax",
    "format": "other format",
    "current": "current scaling",
    "block": "block scaling",
    "mxfp8": "MXFP8",
    "gemm_bf16": "one GEMM in BF16",
    "layer_bf16": "layer in BF16",
}
_OUTCOMES = {"fixes": "fixes it", "not_enough": "not enough", "not_recorded": "not recorded", "fine": "fine"}
_METRICS = ("sqnr_db", "sqnr_low_db", "underflow", "overflow", "gain", "scale_gap_bits")
HEADER = ("tried", "outcome", "SQNR", "99 %", "zero %", "clip %", "gain", "bits")
"""Of the cells of a trial."""
_RIGHT = (False, False, *[True] * len(_METRICS))


def remedy_text(finding: Finding, remedies: Sequence[Remedy]) -> str:
    """The cheapest change that mends what a finding is about; empty where none was looked for."""
    operands = {(place.layer, place.tensor) for place in finding.places}
    found = [remedy for remedy in remedies if (remedy.layer, remedy.tensor) in operands and remedy.chosen is not None]
    by_change: dict[str, list[Remedy]] = {}
    for remedy in found:
        assert remedy.chosen is not None
        by_change.setdefault(_change(remedy.chosen), []).append(remedy)
    if not found:
        return ""
    if len(found) == 1:
        return f"{next(iter(by_change))}{_gained(found[0])}"
    if len(by_change) == 1:
        whose = "all" if len(found) == len(operands) else "the worst"
        return f"{next(iter(by_change))} for {whose} {len(found)}"
    return listed([f"{change} for {len(those)} of {len(found)}" for change, those in by_change.items()])


def remedies_lines(remedies: Sequence[Remedy], looks: Looks) -> Iterator[str]:
    """The section: what was tried for each operand, the cheapest change first."""
    if not remedies:
        return
    yield looks.bold("REMEDIES: what was tried, cheapest first, up to the first that fixes it")
    for remedy in remedies:
        yield ""
        yield _INDENT + looks.bold(f"{operand(remedy.layer, remedy.tensor)}") + f", now {escape(remedy.recipe)}"
        rows = [HEADER, *(trial_cells(trial) for trial in (remedy.present, *remedy.trials))]
        head, *body = columns(rows, right=_RIGHT)
        yield _INDENT + looks.dim(head)
        for trial, line in zip((remedy.present, *remedy.trials), body, strict=True):
            yield _INDENT + (looks.green(line) if trial.outcome == "fixes" else line)
            yield from (looks.dim(text) for text in wrap(trial_note(trial), looks.width, indent=_INDENT * 3))


def _change(trial: Trial) -> str:
    if trial.kind == "layer_bf16":
        return "the whole layer in BF16"
    if trial.kind == "gemm_bf16":
        rest = f", the rest in `{escape(trial.rest)}`" if trial.rest else ""
        return f"{trial.gemm or 'one GEMM'} in BF16{rest}"
    return f"`{escape(trial.change)}`"


def _gained(remedy: Remedy) -> str:
    """In place of what, and the number that it changes most plainly."""
    now, then = remedy.present, remedy.chosen
    assert then is not None
    if then.kind == "layer_bf16":
        missing = [_KINDS[trial.kind] for trial in remedy.trials if trial.outcome == "not_recorded"]
        verb = "was" if len(missing) == 1 else "were"
        return f"; {listed(missing)} {verb} not recorded" if missing else "; nothing cheaper was found"
    text = f" in place of `{escape(remedy.recipe)}`"
    for name, title in (("sqnr_db", "SQNR"), ("sqnr_low_db", "SQNR of the smallest 99 %")):
        before, after = getattr(now, name), getattr(then, name)
        if before is not None and after is not None and after > before + 1:
            return f"{text}: {title} {before:.1f} -> {after:.1f} dB"
    if now.underflow is not None and then.underflow is not None and then.underflow < now.underflow:
        before, after = (METRICS["underflow"].text(value) for value in (now.underflow, then.underflow))
        return f"{text}: {before} -> {after} become zero"
    return text


def trial_cells(trial: Trial) -> tuple[str, ...]:
    """What was tried, with what outcome, and its numbers; as many as `HEADER` has."""
    numbers = (_number(name, getattr(trial, name)) for name in _METRICS)
    return _KINDS.get(trial.kind, trial.kind), _OUTCOMES.get(trial.outcome, trial.outcome), *numbers


def trial_note(trial: Trial) -> str:
    """The change in full, and why it is not enough."""
    change = _change(trial).replace("`", "") if trial.kind not in ("in_use", "layer_bf16") else ""
    return escape("; ".join(filter(None, (change, trial.note))))


def _number(name: str, value: float | None) -> str:
    return "" if value is None else METRICS[name].text(value).partition(" ")[0]
