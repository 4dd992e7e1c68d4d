"""Which steps are sampled and dumped, and options that make no plan."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fp8debug.config import CaptureOptions
from fp8debug.errors import UsageError
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.schedule import Schedule


def sampled(**options: Any) -> list[int]:
    schedule = Schedule.from_options(CaptureOptions(**options))
    return [step for step in range(25) if schedule.sampled(step)]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"every": 1}, [*range(25)]),
        ({"every": 10}, [0, 10, 20]),
        ({}, [0]),
        ({"every": 10, "first": 3}, [0, 1, 2, 10, 20]),
        ({"steps": "0-2,7,22-"}, [0, 1, 2, 7, 22, 23, 24]),
        ({"steps": "5"}, [5]),
        ({"steps": " 3 - 4 , 9 "}, [3, 4, 9]),
        ({"steps": "4-4"}, [4]),
        ({"steps": "3-6,5-7"}, [3, 4, 5, 6, 7]),
        ({"steps": "20", "every": 1}, [20]),
        ({"steps": "20", "first": 2}, [0, 1, 20]),
        ({"steps": "0-9,100,200-"}, [*range(10)]),
    ],
)
def test_sampled_steps(options: dict[str, Any], steps: list[int]) -> None:
    assert sampled(**options) == steps


def test_far_steps_of_an_open_range() -> None:
    schedule = Schedule.from_options(CaptureOptions(steps="0-9,100,200-"))
    assert [schedule.sampled(step) for step in (9, 10, 99, 100, 101, 199, 200, 10**9)] == [
        *(True, False, False, True, False, False, True, True),
    ]


@pytest.mark.parametrize(("raw_every", "steps"), [(0, []), (1, [*range(25)]), (8, [0, 8, 16, 24])])
def test_raw_steps(raw_every: int, steps: list[int]) -> None:
    schedule = Schedule.from_options(CaptureOptions(raw_every=raw_every, every=7))
    assert [step for step in range(25) if schedule.raw(step)] == steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": "3-1"}, "'3-1' runs backwards"),
        ({"steps": "0-9,12-11"}, "'12-11' runs backwards"),
        ({"steps": ""}, "got ''"),
        ({"steps": "1,,2"}, "got ''"),
        ({"steps": "-5"}, "got '-5', expected steps and ranges such as 0-9,100,200-"),
        ({"steps": "1-2-3"}, "got '1-2-3'"),
        ({"steps": "1.5"}, "got '1.5'"),
        ({"steps": "a-b"}, "got 'a-b'"),
        ({"every": 0}, "--every 0"),
        ({"every": -3}, "--every -3"),
        ({"first": -1}, "--first -1"),
        ({"raw_every": -1}, "--raw-every -1"),
        ({"tensors": ("x", "dz")}, "expected some of x, w, dy, y, dx, dw, m, v, key, value ('dz' is none of them"),
        ({"rolls": "epoch"}, "rolls: got 'epoch'; expected microbatch or step"),
        ({"recipes": ("curent",)}, "did you mean current"),
        ({"layers": ("(",)}, "--layers '(' is not a regular expression"),
    ],
)
def test_options_that_make_no_plan(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        CapturePlan.from_options(CaptureOptions(**options))


def test_a_recipe_given_twice_is_one() -> None:
    plan = CapturePlan.from_options(
        CaptureOptions(recipes=("delayed", "current", "delayed:margin=0", "delayed:margin=1"))
    )
    assert [recipe.text for recipe in plan.recipes] == ["delayed", "current", "delayed:margin=1"]
