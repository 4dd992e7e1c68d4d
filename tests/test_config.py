"""How each value may be written."""

from __future__ import annotations

import pytest

from fp8debug.config import (
    BadValue,
    parse_choice,
    parse_count,
    parse_flag,
    parse_recipes,
    parse_regexes,
    parse_steps,
    parse_tensors,
    parse_text,
    parse_texts,
)
from fp8debug.errors import UsageError


@pytest.mark.parametrize(
    ("written", "tensors"),
    [
        ("x,w,dy", ("x", "w", "dy")),
        ("dy , x", ("x", "dy")),
        ("dw dx y", ("y", "dx", "dw")),
        (["w", "w"], ("w",)),
        ("activation,weight,gradient", ("x", "w", "dy")),
        ("input,grad_output,output", ("x", "dy", "y")),
        ("dgrad,wgrad", ("dx", "dw")),
        ("grad_input,grad_weight", ("dx", "dw")),
        ("X,Weight", ("x", "w")),
    ],
)
def test_tensors_in_any_words_come_in_ours(written: object, tensors: tuple[str, ...]) -> None:
    assert parse_tensors(written) == tensors


@pytest.mark.parametrize("written", ["", "x,", "z", 3, [], ["x", 3], None])
def test_bad_tensors(written: object) -> None:
    with pytest.raises(BadValue):
        parse_tensors(written)


@pytest.mark.parametrize("written", ["0", "0-9", "0-9,100,200-", " 1 , 2 - 3 ", "5-", 7])
def test_steps_are_kept_as_text(written: object) -> None:
    assert parse_steps(written) == str(written)


@pytest.mark.parametrize("written", ["", "-", "-5", "1,,2", "1-2-3", "a", "1,", True, 1.5, -1, [1]])
def test_bad_steps(written: object) -> None:
    with pytest.raises(BadValue, match="0-9,100,200-"):
        parse_steps(written)


@pytest.mark.parametrize("written", [1, 40, "1", " 12 "])
def test_counts(written: object) -> None:
    assert parse_count(1)(written) == int(str(written))


@pytest.mark.parametrize("written", [0, -1, "0", "-1", "1.5", 1.0, True, "", "x", None])
def test_bad_counts(written: object) -> None:
    with pytest.raises(BadValue, match="at least 1"):
        parse_count(1)(written)


@pytest.mark.parametrize("yes", [True, "1", "true", "YES", " on "])
def test_flag_on(yes: object) -> None:
    assert parse_flag(yes) is True


@pytest.mark.parametrize("no", [False, "0", "False", "no", "off"])
def test_flag_off(no: object) -> None:
    assert parse_flag(no) is False


@pytest.mark.parametrize("written", ["", "maybe", 1, 0, None])
def test_bad_flag(written: object) -> None:
    with pytest.raises(BadValue, match="true or false"):
        parse_flag(written)


def test_regexes_are_taken_whole() -> None:
    assert parse_regexes(r"a,b c|d") == (r"a,b c|d",)
    assert parse_regexes(["a", r"b\.c"]) == ("a", r"b\.c")
    with pytest.raises(BadValue, match=r"'\(': missing \)"):
        parse_regexes(["a", "("])


def test_recipes_stand_apart_by_white_space_and_keep_their_commas() -> None:
    assert parse_recipes("current  delayed:amax_history_len=16,margin=1") == (
        "current",
        "delayed:amax_history_len=16,margin=1",
    )
    with pytest.raises(UsageError, match="delayed"):
        parse_recipes(["delayd"])


def test_texts_and_choices() -> None:
    assert parse_text("a b") == "a b"
    assert parse_texts("a b") == ("a b",)
    assert parse_choice("a", "b")("b") == "b"
    for bad in ("", "  ", 3, None):
        with pytest.raises(BadValue):
            parse_text(bad)
    with pytest.raises(BadValue, match="a or b"):
        parse_choice("a", "b")("c")
