"""Findings as text: the head of a report, where and since when, names that are hostile or long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.diagnosis import Evidence, Finding, Place
from fp8debug.analysis.remedies import Remedy, Trial
from fp8debug.analysis.report import Report, RulesInForce, build_report
from fp8debug.cli.render.findings import findings_lines
from fp8debug.cli.render.remedies import remedies_lines, remedy_text
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.where import common_pattern, since, where

Golden = Callable[[str, str], None]

PLACE = Place("blocks.0.fc2", "x", None, "delayed", None, 3, 40, 12, 20, 9.5, "under delayed it is bad")
FINDING = Finding(
    rule="rule",
    severity="error",
    confidence="likely",
    message="under delayed it is bad",
    advice="Do this.",
    needs=None,
    evidence=(Evidence("gain", "0.5", "1"), Evidence("scale gap, bits", "+2.0", "0")),
    places=(PLACE,),
    page="docs/rules/rule.md",
)


def at(*places: Place, **more: object) -> Finding:
    return replace(FINDING, places=places, **more)  # type: ignore[arg-type]


def layers(*names: str) -> Finding:
    return at(*(replace(PLACE, layer=name) for name in names))


@pytest.fixture(scope="module")
def healthy(shared: Path) -> Report:
    with open_run(shared / "healthy", threads=1) as run:
        return build_report(run)


def report_of(report: Report, *findings: Finding, **more: object) -> Report:
    counts = {f"n_{word}s": sum(f.severity == word for f in findings) for word in ("error", "warning")}
    return replace(report, findings=findings, n_findings=len(findings), **counts, **more)  # type: ignore[arg-type]


def text_of(report: Report, looks: Looks = Looks()) -> str:  # noqa: B008 - frozen
    return "\n".join(findings_lines(report, looks)) + "\n"


# Where, and since when ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (FINDING, "blocks.0.fc2 x"),
        (at(PLACE, replace(PLACE, recipe="current")), "blocks.0.fc2 x, under delayed and current"),
        (at(replace(PLACE, recipe="current", gemm="fprop", rank=3)), "blocks.0.fc2 x, fprop, under current, rank 3"),
        (layers("b.3.fc", "b.0.fc", "b.2.fc", "b.9.fc"), "b.*.fc x in 4 layers: b.3.fc, b.0.fc, b.2.fc and 1 more"),
        (layers("b.0.fc1", "b.0.fc2"), "2 operands: b.0.fc1 x, b.0.fc2 x"),
        (at(PLACE, replace(PLACE, tensor="w")), "2 operands: blocks.0.fc2 x, blocks.0.fc2 w"),
        (at(replace(PLACE, tensor=None), replace(PLACE, layer="h", tensor=None)), "2 layers: blocks.0.fc2, h"),
        (at(*(replace(PLACE, layer=None, tensor=None, rank=rank) for rank in range(5))), "ranks 0, 1, 2 and 2 more"),
        (at(replace(PLACE, layer=None, tensor=None)), ""),
    ],
)  # fmt: skip
def test_where(finding: Finding, text: str) -> None:
    assert where(finding) == text


def test_only_the_numbers_that_differ_are_left_open() -> None:
    assert common_pattern(["model.1.layers.0.fc2", "model.1.layers.10.fc2"]) == "model.1.layers.*.fc2"
    assert common_pattern(["fc1", "fc2"]) is None and common_pattern([]) is None


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (FINDING, "steps 3 to 40, in 12 of 20 steps"),
        (at(replace(PLACE, n_observed_steps=None)), "steps 3 to 40, in 12 steps"),
        (at(replace(PLACE, n_steps=None)), "steps 3 to 40"),
        (at(replace(PLACE, last_step=3)), "step 3"),
        (at(replace(PLACE, first_step=None)), ""),
        (at(PLACE, replace(PLACE, layer="head", first_step=1)), "steps 1 to 40, the worst in 12 of 20 steps"),
        (at(PLACE, replace(PLACE, recipe="current")), "steps 3 to 40, in 12 of 20 steps under delayed"),
    ],
)
def test_since(finding: Finding, text: str) -> None:
    assert since(finding) == text


# The section ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_finding(healthy: Report, golden: Golden) -> None:
    several = layers(*(f"blocks.{n}.fc2" for n in range(12)))
    unsure = replace(
        FINDING, severity="warning", confidence="not_enough_evidence", needs="record w, `--tensors x,w,dy`", evidence=()
    )
    of_the_run = at(replace(PLACE, layer=None, tensor=None, recipe=None, n_steps=None), severity="warning")
    notes = [replace(FINDING, severity=word, message=f"a {word}") for word in ("watch", "note")]
    rules = RulesInForce(9, ("clipping",), ("threshold gap_bits = 2", "gain_off: limit = 3"), ("rules/mine.sql",))
    text = text_of(report_of(healthy, several, FINDING, unsure, of_the_run, *notes, rules=rules))
    golden("findings.txt", text)
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_found(healthy: Report) -> None:
    assert text_of(healthy).splitlines() == [
        "NO FINDING",
        "  No rule found anything in 6 operands and 24 steps, 12 of them sampled.",
    ]
    assert "\x1b[32mNO FINDING" in text_of(healthy, Looks(colour=True))
    unjudged = replace(healthy, verdict="not_enough_evidence")
    assert text_of(unjudged, Looks(colour=True)).startswith("\x1b[1m\x1b[33mNOT ENOUGH EVIDENCE"), (
        "silence is no health"
    )


def test_nothing_serious_found(healthy: Report) -> None:
    text = text_of(report_of(healthy, replace(FINDING, severity="note")))
    assert text.startswith("NO ERROR AND NO WARNING; 1 to know of\n  - note: under delayed it is bad (blocks.0.fc2 x;")


def test_severities_are_coloured(healthy: Report) -> None:
    text = text_of(report_of(healthy, FINDING, replace(FINDING, severity="warning")), Looks(colour=True))
    assert "\x1b[31mERROR" in text and "\x1b[33mWARNING" in text


def test_what_is_cut_is_said(healthy: Report) -> None:
    text = text_of(replace(report_of(healthy, FINDING), n_findings=4, n_errors=4))
    assert text.startswith("4 FINDINGS: 4 errors, worst first\n")
    assert text.endswith("  ... and 3 findings more: --top N shows more\n")


def test_hostile_and_long_names(healthy: Report) -> None:
    name = "net.\x1b[31mfc\u202e\n" + "very_long_name." * 12
    hostile = at(
        replace(PLACE, layer=name, recipe="cur\x07rent"),
        message=f"bad in {name}", advice="\x1b[0m", needs="\x1b[1m", evidence=(Evidence("\x1b", "\x1b", "\x1b"),),
    )  # fmt: skip
    text = text_of(report_of(healthy, hostile, replace(hostile, severity="note")))
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert max(map(len, text.splitlines()[4:])) <= 80
    assert "very_long_name." * 12 in "".join(line.strip() for line in text.splitlines())


# Remedies -------------------------------------------------------------------------------------------------------------


def remedy(layer: str, *trials: Trial) -> Remedy:
    present = Trial("in_use", "delayed", "not_enough", sqnr_db=6.1, sqnr_low_db=6.0, underflow=0.1)
    return Remedy(layer, "x", trials, trials[-1] if trials else None, "delayed", present)


MARGIN = Trial("margin", "delayed:margin=1", "not_enough", sqnr_db=9.0, note="SQNR 9.0 dB")
CURRENT = Trial("current", "current", "fixes", sqnr_db=31.5, underflow=0.0)
LAYER = Trial("layer_bf16", "bf16", "fixes", note="nothing cheaper was found")


@pytest.mark.parametrize(
    ("remedies", "text"),
    [
        ([], ""),
        ([remedy("head", CURRENT)], ""),
        ([remedy("blocks.0.fc2", MARGIN, CURRENT)], "`current` in place of `delayed`: SQNR 6.1 -> 31.5 dB"),
        (
            [remedy("blocks.0.fc2", Trial("format", "delayed:fp8_format=E5M2", "fixes", sqnr_db=6.2, underflow=0.001))],
            "`delayed:fp8_format=E5M2` in place of `delayed`: 10.0 % -> 0.1 % become zero",
        ),
        ([remedy("blocks.0.fc2", LAYER)], "the whole layer in BF16; nothing cheaper was found"),
        (
            [remedy("blocks.0.fc2", Trial("mxfp8", "mxfp8", "not_recorded"), LAYER)],
            "the whole layer in BF16; MXFP8 was not recorded",
        ),
        (
            [remedy("blocks.0.fc2", Trial("gemm_bf16", "bf16", "fixes", gemm="wgrad", rest="block"))],
            "wgrad in BF16, the rest in `block` in place of `delayed`",
        ),
        ([remedy(f"blocks.{n}.fc2", CURRENT) for n in range(3)], "`current` for all 3"),
        ([remedy(f"blocks.{n}.fc2", CURRENT) for n in range(2)], "`current` for the worst 2"),
        (
            [remedy("blocks.0.fc2", CURRENT), remedy("blocks.1.fc2", CURRENT), remedy("blocks.2.fc2", LAYER)],
            "`current` for 2 of 3 and the whole layer in BF16 for 1 of 3",
        ),
    ],
)
def test_the_cheapest_change(remedies: list[Remedy], text: str) -> None:
    assert remedy_text(layers(*(f"blocks.{n}.fc2" for n in range(3))), remedies) == text


def test_all_that_was_tried() -> None:
    lines = list(remedies_lines([remedy("blocks.0.fc2", MARGIN, CURRENT)], Looks()))
    assert lines[0] == "REMEDIES: what was tried, cheapest first, up to the first that fixes it"
    assert lines[2] == "  blocks.0.fc2 x, now delayed"
    assert [line.split()[:3] for line in lines[4:]] == [
        ["as", "it", "is"], ["margin", "not", "enough"], ["delayed:margin=1;", "SQNR", "9.0"],
        ["current", "scaling", "fixes"], ["current"],
    ]  # fmt: skip
    assert list(remedies_lines([], Looks())) == []
