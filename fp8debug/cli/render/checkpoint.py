"""The audit of a checkpoint as text for a person: how it is read, what is wrong, what it differs in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fp8debug.analysis.checkpoint import Audit, CheckFinding, CheckPlace, Quantised, Scale
from fp8debug.cli.render.checkpoint_comparison import comparison_lines, three_way_lines
from fp8debug.cli.render.findings import IN_FULL
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape, wrap
from fp8debug.cli.render.wording import count, listed, with_full_stop
from fp8debug.errors import some

_LABEL_WIDTH = 11
_TOP_OF_NOTES = 3
CHECKS_PAGE = "docs/checkpoint-checks.md"
"""What each check looks for."""
LEFT_OUT = "left out"
"""What problems begin with that are none: optimizers' states, numbers that are no tensors."""
_OPERATION = {True: "/", False: "x"}


def render_checkpoint(audit: Audit, looks: Looks, *, top: int) -> str:
    """The whole audit, ending in a newline.

    Args:
        audit: what is shown.
        looks: of the stream it is for.
        top: most tensors that a finding or a table shows.
    """
    sections = (
        _head(audit, looks),
        _findings(audit, looks, top),
        *(comparison_lines(one, looks, top) for one in audit.comparisons),
        () if audit.three_way is None else three_way_lines(audit.three_way, looks),
        _problems(audit, looks, top),
    )
    return "\n".join("\n".join(lines) + "\n" for section in sections if (lines := list(section)))


def verdict(audit: Audit) -> str:
    """What it comes to, in a line."""
    n = sum(not problem.startswith(LEFT_OUT) for problem in audit.problems)
    told = _told(audit) + (f"; {count(n, 'problem')} in reading it, told at the end" if n else "")
    return f"{told}; only headers and scales were read, no codes and no weights" if audit.headers_only else told


def _told(audit: Audit) -> str:
    counted = Counter(finding.severity for finding in audit.findings)
    parts = [count(counted[severity], severity) for severity in ("error", "warning") if counted[severity]]
    if parts:
        return listed(parts)
    if audit.convention.unknown and not audit.convention.quantised:
        return "no codes that are known here, and names that are not understood; no error and no warning"
    if audit.convention.dialect is None:
        return "nothing in it is quantised; no error and no warning"
    alone = (
        ""
        if audit.comparisons or audit.headers_only
        else "; the values themselves were held against nothing (--reference does)"
    )
    return f"no error and no warning{alone}"


def how_read(audit: Audit) -> list[str]:
    """One sentence for each way in which codes become values, with the number of tensors read that way."""
    ways = Counter(_way(one) for one in audit.convention.quantised)
    return [f"{count(n, 'tensor')}: {way}" for way, n in ways.most_common()]


def _way(quantised: Quantised) -> str:
    packed = ", two in a byte" if quantised.is_packed else ""
    if not quantised.scales:
        return f"{quantised.fmt} codes{packed} without a scale"
    scales = " ".join(f"{_OPERATION[one.divides]} {_scale(quantised, one)}" for one in quantised.scales)
    return f"value = {quantised.fmt} code{packed} {scales}"


def _scale(quantised: Quantised, scale: Scale) -> str:
    ending = scale.name.removeprefix(quantised.module).lstrip(".")
    return f"{ending} ({scale.encoding}, one a {_extent(scale)})"


def _extent(scale: Scale) -> str:
    if scale.layout != "block" or scale.block is None:
        return scale.layout
    lines, columns = scale.block
    return f"block of {lines}x{columns}" + (", stored transposed" if scale.is_transposed else "")


def head_facts(audit: Audit) -> Iterator[tuple[str, str]]:
    """What it holds and how it is read: labels and texts."""
    read = audit.convention
    size = f"{audit.n_bytes / 1e9:.2f} GB" if audit.n_bytes >= 1e8 else f"{audit.n_bytes / 1e6:.1f} MB"
    yield "holds", f"{count(audit.n_tensors, 'tensor')} in {count(audit.n_files, 'file')}, {size}"
    if read.dialect is not None:
        yield "dialect", read.dialect if read.title == read.dialect else f"{read.dialect}: {read.title}"
        yield "known by", read.why
    for words in how_read(audit):
        yield "read as", words
    if read.plain:
        yield "as it is", count(len(read.plain), "tensor that is not quantised", _NOT_QUANTISED)
    if read.block is not None:
        yield "block", f"{read.block[0]}x{read.block[1]}, says {read.block_from}"
    for assumption in read.assumptions:
        yield "assumed", with_full_stop(assumption.message)
    if read.unknown:
        yield "unknown", f"{count(len(read.unknown), 'name')} not understood: {some(read.unknown)}"


_NOT_QUANTISED = "tensors that are not quantised"


def _head(audit: Audit, looks: Looks) -> Iterator[str]:
    yield looks.bold(f"CHECKPOINT {escape(audit.path)}")
    for label, words in head_facts(audit):
        yield from _labelled(label, escape(words), looks)
    yield from _labelled("verdict", verdict(audit), looks)


def _labelled(label: str, text: str, looks: Looks) -> list[str]:
    return wrap(text, looks.width, indent=f"  {label:{_LABEL_WIDTH}}")


def _findings(audit: Audit, looks: Looks, top: int) -> Iterator[str]:
    for place, finding in enumerate(audit.findings, 1):
        if place > 1:
            yield ""
        yield from _finding(place, finding, looks, top)


def _finding(place: int, finding: CheckFinding, looks: Looks, top: int) -> Iterator[str]:
    paint = {"error": looks.red, "warning": looks.yellow}.get(finding.severity, looks.dim)
    head = wrap(
        f"{finding.severity.upper()}: {with_full_stop(escape(finding.message))}", looks.width, indent=f"{place}. "
    )
    yield from (looks.bold(paint(line)) for line in head)
    shown = top if finding.severity in IN_FULL else min(top, _TOP_OF_NOTES)
    for one in finding.places[1:shown]:
        yield from wrap(with_full_stop(escape(entry(one))), looks.width, indent="   - ")
    left = len(finding.places) - shown
    if left > 0:
        yield f"     ... and {left:,} more: {looks.dim('--top N shows more')}"
    if finding.advice:
        yield from wrap(escape(finding.advice), looks.width, indent="   do        ")
    yield f"   more      {CHECKS_PAGE}#{finding.check}"


def entry(place: CheckPlace) -> str:
    """A place in a list, below the finding that tells the worst one in full."""
    if place.brief:
        return f"{place.tensor}: {place.brief}"
    return place.message if place.tensor in place.message else f"{place.tensor}: {place.message}"


def _problems(audit: Audit, looks: Looks, top: int) -> Iterator[str]:
    if not audit.problems:
        return
    yield looks.bold(looks.red("PROBLEMS: what could not be read, or was left out"))
    yield from _bullets(audit.problems[:top], looks)
    left = len(audit.problems) - top
    if left > 0:
        yield f"  ... and {left:,} more: {looks.dim('--top N shows more')}"


def _bullets(texts: Sequence[str], looks: Looks) -> Iterator[str]:
    for text in texts:
        yield from wrap(f"- {with_full_stop(escape(text))}", looks.width, hanging="  ")
