"""What is said of a bundle that was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fp8debug.cli.render.tables import escape, wrap
from fp8debug.cli.render.wording import count, with_full_stop

if TYPE_CHECKING:
    from fp8debug.analysis.bundle import Bundle


def bundle_text(bundle: Bundle, target: Path, n_bytes: int, *, width: int) -> str:
    """Where it is, what it says, and what was cut."""
    lines = [f"Wrote {escape(str(target))} ({n_bytes / 1e6:.2f} MB)", ""]
    lines += wrap(with_full_stop(escape(bundle.verdict)), width)
    moment = bundle.moment
    held = [count(bundle.n_findings, "finding"), f"histograms of {count(bundle.n_histograms, 'tensor')}"]
    around = f" around step {moment.step} ({moment.why})" if moment.step is not None and bundle.n_histograms else ""
    lines += wrap(f"Inside: {' and '.join(held)}{around}; scales, errors, loss and events.", width)
    if bundle.lost:
        text = f"Opened again, it does not show all findings of {', '.join(bundle.lost)}: findings.json has them."
        lines += wrap(text, width)
    lines += [line for words in bundle.cut for line in wrap(f"Cut: {words}.", width)]
    lines += wrap("No raw values, paths, user or host names. Read README.txt in it before you publish it.", width)
    return "\n".join(lines) + "\n"
