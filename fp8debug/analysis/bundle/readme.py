"""The text that goes with a bundle: what is in it, and what is not."""

from __future__ import annotations

import textwrap

from fp8debug.analysis.bundle.content import Bundle
from fp8debug.analysis.bundle.scrub import Scrubber
from fp8debug.analysis.bundle.tables import LEFT_OUT

_WIDTH = 80
_OPEN = (
    "Unzip it and open it like any run directory: `fp8debug report fp8debug-bundle`, `fp8debug sql fp8debug-bundle`."
)
_PARTS = """\
run.json         versions, options, layers, and the command without paths
findings.json    what is wrong: layers, operands, steps, evidence
report.txt       what `fp8debug report` says of this folder
steps/           loss, gradient norm and learning rate of each step
tensors/         amax, zeros, NaN and Inf of each tensor
scales/          scales and the amaxes that set them
errors/          what FP8 would lose of each tensor, as sums
blocks/ channels/ gemms/   the same by block, by channel and of GEMM results
events/          what went wrong or is missing, in words
histograms/      distinct values and how often each occurs
"""


def readme(bundle: Bundle, scrubber: Scrubber) -> str:
    """README.txt."""
    moment = bundle.moment
    about = f"Step {moment.step}: {moment.why}." if moment.step is not None else "No step stands out."
    histograms = (
        f"Histograms are of {bundle.n_histograms} tensors around that step; a histogram does not tell where in a "
        "tensor a value stands. What remedies and `fp8debug whatif` say of this folder rests on them alone."
        if bundle.n_histograms
        else "There are no histograms."
    )
    names = (
        "Layers are called layer_001 and so on, in the order of the model."
        if scrubber.layers
        else "Names of layers are as in the model (`--anonymize-layers` replaces them)."
    )
    left_out = (
        f"Left out: raw values (the tables {' and '.join(LEFT_OUT)}), paths, names of users and hosts, process and job "
        f"numbers. {names} Parts of free texts that look like paths, addresses or such names are replaced; look "
        "through findings.json and events before you publish it."
    )
    paragraphs = [f"{bundle.verdict}.", about, _OPEN, _PARTS, histograms, left_out]
    if bundle.lost:
        paragraphs.append(
            f"Findings of {', '.join(bundle.lost)} are in findings.json in full; opened again, the bundle does not "
            "show all of them, since they rest on what is left out."
        )
    paragraphs += [f"Cut: {words}." for words in bundle.cut]
    return "fp8debug bundle\n\n" + "\n".join(map(_paragraph, paragraphs))


def _paragraph(text: str) -> str:
    return text if text is _PARTS else textwrap.fill(text, _WIDTH, break_on_hyphens=False) + "\n"
