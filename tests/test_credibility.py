"""The known numbers come out of our own functions, and the page that explains them has them all."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SMALL = {"matrix": 512, "blocks": 1 << 16, "gap_tensors": 8}


@pytest.fixture(scope="module")
def credibility(repository: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(repository / "benchmarks")
        yield importlib.import_module("credibility")


@pytest.fixture(scope="module")
def found(credibility: ModuleType) -> list[Any]:
    return list(credibility.rows(credibility.Sizes(**SMALL)))


def test_every_known_number_is_within_its_tolerance(found: list[Any]) -> None:
    assert [row for row in found if not row.ok] == []


def test_the_numbers_of_the_field_are_among_them(found: list[Any]) -> None:
    expected = {row.claim: row.expected for row in found}
    assert len(expected) == len(found)
    assert expected["Gaussian, E4M3, one scale for the tensor"] == 31.5
    assert expected["Gaussian, E5M2, one scale for the tensor"] == 25.6
    assert (expected["Gaussian, NVFP4"], expected["Gaussian, MXFP4"]) == (20.4, 18.8)
    assert [value for claim, value in expected.items() if "a maximum beyond 448" in claim] == [19.3, 16.8, 0, 0]
    assert [value for claim, value in expected.items() if "bias" in claim] == [-6.3, -0.06, -7.3, -0.05]
    assert [expected[f"Gaussian, E4M3, scale gap {gap} bits"] for gap in ("+1", "+2", "-12")] == [23, 10, 30]


def test_tolerances_are_small_enough_to_tell(found: list[Any]) -> None:
    for row in found:
        assert row.tolerance <= max(0.07 * abs(row.expected), 0.1), row.claim
        assert not replace(row, measured=row.expected + 1.01 * row.tolerance + 1e-9).ok
        assert not replace(row, measured=float("nan")).ok


def test_the_page_has_every_number_and_explains_it(found: list[Any], repository: Path) -> None:
    page = (repository / "docs" / "credibility.md").read_text(encoding="utf-8")
    table, explanations = page.split("<!-- /credibility -->")
    measured = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| (\S+) [^|]+ \| [^|]+ \| yes \|$", table, re.MULTILINE))
    assert list(measured) == [row.claim for row in found]
    for row in found:
        assert replace(row, measured=float(measured[row.claim])).ok, row.claim
    explained = re.findall(r"\*\*(.+?)\*\*", explanations)
    assert [row.claim for row in found if not row.claim.startswith(tuple(explained))] == []
    assert [name for name in explained if not any(row.claim.startswith(name) for row in found)] == []


def test_a_number_out_of_its_tolerance_fails_the_run(
    credibility: ModuleType,
    found: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- credibility -->\n<!-- /credibility -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["credibility.py", "--markdown", str(page)])
    for numbers, code in ((found[:2], 0), ([found[0], replace(found[1], measured=20.0)], 1)):
        monkeypatch.setattr(credibility, "rows", lambda sizes, numbers=numbers: iter(numbers))
        assert credibility.main() == code
        printed = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r".+, \d+ cores, Python .+, numpy .+, fp8debug .+; \d{4}-\d\d-\d\d", printed[0])
        assert [line.split()[-1] for line in printed[2:]] == ["yes", "NO" if code else "yes"]
        written = page.read_text(encoding="utf-8").splitlines()
        assert written[0] == "before" and written[-1] == "after"
        assert written[5].endswith("20 dB | 0.1 | NO |" if code else "| 0.1 | yes |")
