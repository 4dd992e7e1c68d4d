"""Numbers in the words that a person reads."""

from __future__ import annotations

import pytest

from fp8debug.cli.render.wording import METRICS


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("scale_gap_bits", -6e-8, "0 bits"),
        ("sqnr_db", -2e-17, "0 dB"),
        ("scale_gap_bits", 0.04, "0.04 bits"),
        ("underflow", 1e-9, "1e-07 %"),  # a share is telling however small it is
        ("gain", 2e-6, "2e-06"),
        ("sqnr_db", None, "-"),
    ],
)
def test_rounding_errors_are_nothing(metric: str, value: float | None, text: str) -> None:
    assert METRICS[metric].text(value) == text
