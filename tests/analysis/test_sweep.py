"""A parameter over a range: what is expanded, in which order, and what is refused."""

from __future__ import annotations

import pytest

from fp8debug.analysis.whatif import parse_sweep, swept
from fp8debug.errors import UsageError
from fp8debug.recipes import parse_recipe


def texts(recipes: list[str], *sweeps: str) -> list[str]:
    return [r.text for r in swept([parse_recipe(text) for text in recipes], [parse_sweep(text) for text in sweeps])]


@pytest.mark.parametrize(
    ("sweep", "values"),
    [
        ("margin=0:4", ("0", "1", "2", "3", "4")),
        ("margin=-2:2:2", ("-2", "0", "2")),
        ("margin=3:3", ("3",)),
        ("amax_history_len=1:10:4", ("1", "5", "9")),
        ("k=1:2:0.25", ("1", "1.25", "1.5", "1.75", "2")),
        ("scale=.5:1.5", ("0.5", "1.5")),
        ("scale=0.1:0.3:0.1", ("0.1", "0.2", "0.3")),
        (" fp8_format = E4M3 , E5M2 ", ("E4M3", "E5M2")),
        ("power_of_two=true", ("true",)),
        ("scale=1e-3,2", ("1e-3", "2")),
    ],
)
def test_values(sweep: str, values: tuple[str, ...]) -> None:
    assert parse_sweep(sweep).values == values


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("margin", "expected NAME=FIRST:LAST"),
        ("margin=", "expected NAME=FIRST:LAST"),
        ("=1:2", "expected NAME=FIRST:LAST"),
        ("margin=1:", "expected NAME=FIRST:LAST"),
        ("margin=a:b", "expected NAME=FIRST:LAST"),
        ("margin=1:2:3:4", "expected NAME=FIRST:LAST"),
        ("margin=0-4", "expected NAME=FIRST:LAST"),
        ("margin=1,,2", "expected NAME=FIRST:LAST"),
        ("margin=4:0", "the range is empty"),
        ("margin=0:4:0", "the range is empty"),
        ("margin=0:4:-1", "the range is empty"),
        ("amax_history_len=1:1024", "1024 values; at most 64"),
    ],
)
def test_syntax_is_checked(sweep: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sweep(sweep)


def test_each_recipe_that_has_the_parameter_is_replaced() -> None:
    assert texts(["current", "delayed:amax_history_len=16,margin=3", "mxfp8"], "margin=0:2") == [
        "current",
        "delayed:amax_history_len=16",
        "delayed:amax_history_len=16,margin=1",
        "delayed:amax_history_len=16,margin=2",
        "mxfp8",
    ]


def test_sweeps_combine() -> None:
    assert texts(["delayed", "current"], "margin=0,1", "fp8_format=E4M3,HYBRID") == [
        "delayed:fp8_format=E4M3",
        "delayed",
        "delayed:margin=1,fp8_format=E4M3",
        "delayed:margin=1",
        "current:fp8_format=E4M3",
        "current",
    ]


def test_parameters_that_a_recipe_needs_are_kept() -> None:
    assert texts(["static:scale=4,set_at_step=7"], "scale=1,2") == [
        "static:set_at_step=7",
        "static:scale=2.0,set_at_step=7",
    ]


def test_equal_recipes_are_one() -> None:
    assert texts(["delayed", "delayed:margin=1"], "margin=0,1,0") == ["delayed", "delayed:margin=1"]


@pytest.mark.parametrize(
    ("recipes", "sweeps", "message"),
    [
        (["delayed"], ["margn=0:2"], r"--sweep margn: none of the recipes \(delayed\) has this parameter; did you "
                                     "mean margin"),
        (["current", "mxfp8"], ["margin=0:2"], r"none of the recipes \(current, mxfp8\)"),
        (["delayed"], ["margin=30:34"], "margin is 33, expected an integer from -32 to 32"),
        (["delayed"], ["fp8_format=E4M4"], "fp8_format is 'E4M4', expected one of"),
        (["delayed"], ["margin=0:0.5:0.25"], "margin is '0.25', expected an integer"),
        (["delayed"], ["margin=0:15", "amax_history_len=1:8"], "128 recipes; at most 64"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(recipes: list[str], sweeps: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        texts(recipes, *sweeps)


def test_recipes_that_no_value_suits_stay_as_they_are() -> None:
    """Such as those of a run that was recorded under many recipes, in a sweep over what some of them can have."""
    assert texts(["current", "nvfp4", "bf16"], "fp8_format=E4M3,E5M2") == [
        "current:fp8_format=E4M3",
        "current:fp8_format=E5M2",
        "nvfp4",
        "bf16",
    ]
    with pytest.raises(UsageError, match="margin is 40"):
        texts(["delayed", "current"], "margin=32,40")
