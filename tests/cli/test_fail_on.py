"""The condition of `--fail-on`: what can be written, when it holds, and that silence is no pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.report import Report, build_report
from fp8debug.cli.fail_on import Outcome, Term, evaluate, parse_fail_on
from fp8debug.errors import UsageError

Case = tuple[Report, Run]


def _opened(path: Path) -> Iterator[Case]:
    with open_run(path, threads=1) as run:
        yield build_report(run, top=1), run


@pytest.fixture(scope="module")
def faulty(shared: Path) -> Iterator[Case]:
    yield from _opened(shared / "faulty")


@pytest.fixture(scope="module")
def healthy(shared: Path) -> Iterator[Case]:
    yield from _opened(shared / "healthy")


def outcome(case: Case, expression: str) -> Outcome:
    return evaluate(parse_fail_on(expression), expression, *case)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("findings", r"findings>0: 3 \(errors and warnings\)"),
        ("errors>2", r"errors>2: 3 \(findings that are errors\)"),
        ("warnings<1", r"warnings<1: 0 \(findings that are warnings\)"),
        ("candidates", r"candidates>0: 2 \(operands that should fall back to BF16\)"),
        ("candidates>=2", r"candidates>=2: 2 \(.*\)"),
        ("watch", r"watch>0: 1 \(operands on the watch list\)"),
        ("isolated", r"isolated>0: 1 \(steps with isolated hits\)"),
        ("nan", r"nan>0: 3 \(NaN and Inf values, .*\)"),
        (
            " scale_gap_bits > 1.5 ",
            "scale_gap_bits>1.5: 13 records, worst 3 in blocks.0.fc1 dy at step 6 under delayed",
        ),
        ("gain<0.5", r"gain<0.5: 1 record, worst 0\.3\d* in blocks.0.fc1 dy at step 6 under delayed"),
        ("sqnr_low_db<10", r"sqnr_low_db<10: 37 records, worst 3\.\d+ in blocks.0.fc1 dy at step 6 under delayed"),
    ],
)
def test_it_holds(faulty: Case, expression: str, reason: str) -> None:
    got = outcome(faulty, expression)
    assert got.hit and len(got.reasons) == 1
    assert re.fullmatch(reason, got.reasons[0])


@pytest.mark.parametrize("metric", ["rel_l2>0.2", "cosine<0.99", "mse>0", "underflow_all>0.5", "db_lost>19"])
def test_metrics_that_the_rules_do_not_use(faulty: Case, metric: str) -> None:
    assert outcome(faulty, metric).hit


@pytest.mark.parametrize(
    "expression",
    [
        "findings",
        "candidates",
        "watch",
        "isolated",
        "nan",
        "underflow>0.05",
        "sqnr_db<20",
        "rel_l2>0.2",
        "candidates<0,nan>1e3",
    ],
)
def test_it_does_not_hold(healthy: Case, expression: str) -> None:
    assert outcome(healthy, expression) == Outcome(expression, False, ())


def test_any_term_suffices(faulty: Case) -> None:
    assert [reason.partition(":")[0] for reason in outcome(faulty, "candidates>5,watch,overflow>.1").reasons] == [
        "watch>0",
        "overflow>0.1",
    ]


def test_numbers() -> None:
    assert parse_fail_on("gain>1") == (Term("gain", ">", 1.0),)
    assert [term.limit for term in parse_fail_on("mse<=1e-3, mse>=-.5, mse<2.")] == [1e-3, -0.5, 2.0]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "got ''; expected findings, errors, warnings, candidates, watch, isolated, nan (alone, or compared"),
        ("nan,", "got ''; expected findings"),
        ("underflow>a", "got 'underflow>a'; expected findings"),
        ("underflow=0.1", "got 'underflow=0.1'; expected findings"),
        ("candidates; drop table x", "expected findings"),
        ("underflow", "underflow needs a comparison, such as underflow>0.02; expected findings"),
        ("underflw>0.1", "unknown name 'underflw'; did you mean underflow"),
        ("step>0", "unknown name 'step'"),
    ],
)
def test_what_is_no_condition(expression: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fail_on(expression)
    assert message in str(caught.value)
    assert "sqnr_db, sqnr_low_db, gain" in str(caught.value), "it lists what is allowed"
