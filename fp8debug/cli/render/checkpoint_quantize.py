"""What was quantised, as text for a person and as JSON."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from fp8debug import __version__
from fp8debug.analysis.checkpoint.quantize import Written
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.wording import count
from fp8debug.errors import escape

_VERSION = 1


def written_json(written: Written) -> str:
    """One JSON object and a newline: the fields of the records under their own names."""
    return document_text({"quantize_version": _VERSION, "fp8debug_version": __version__, **asdict(written)})


def render_written(written: Written) -> str:
    """What was written, what was left as it is and why, and what to do next; ends in a newline."""
    return "".join(f"{line}\n" for line in _lines(written))


def _lines(written: Written) -> Iterator[str]:
    size, before = (f"{n / 1e6:,.1f} MB" for n in (written.n_bytes, written.n_source_bytes))
    yield f"Wrote {escape(written.path)}: {written.dialect}, {escape(written.recipe)}, {size} (before: {before})"
    yield f"  quantised {count(len(written.quantised), 'weight')} in {written.fmt}{_loss(written)}"
    kept = Counter(one.why for one in written.kept)
    if kept:
        yield f"  kept      {', '.join(f'{n:,} ({escape(why)})' for why, n in kept.most_common())}"
    for one in written.quantised:
        if one.n_nonfinite:
            yield f"  {escape(one.name)}: {count(one.n_nonfinite, 'value')} NaN or infinite"
    path = shlex.quote(written.path)
    yield f"Next: fp8debug checkpoint {escape(path)} --reference {escape(shlex.quote(written.source))}"


def _loss(written: Written) -> str:
    worst = written.worst
    if worst is None or worst.sqnr_db is None:
        return ""
    return f", SQNR at least {worst.sqnr_db:.1f} dB ({escape(worst.name)})"
