"""Which recomputations are found again among the forwards, in whatever order they come."""

from __future__ import annotations

from fp8debug.hooks.recompute_watch import RecomputeWatch
from fp8debug.replay import Moment


def at(pass_: str, microbatch: int = 0, step: int = 0) -> Moment:
    return Moment(step, microbatch, 0, pass_)


def test_calls_are_a_multiset() -> None:
    watch = RecomputeWatch()
    for checksum in (1, 2, 2):
        watch.forward("fc", at("forward"), checksum)
    assert [watch.differs("fc", at("recompute"), c) for c in (2, 1, 2)] == [False] * 3
    assert [watch.differs("fc", at("recompute"), c) for c in (1, 2, 2)] == [False] * 3  # a nested checkpoint's round
    assert [watch.differs("fc", at("recompute"), c) for c in (1, 1)] == [False, True]
    assert not watch.differs("fc", at("recompute"), 7)  # told once


def test_pipelines_recompute_an_earlier_microbatch() -> None:
    watch = RecomputeWatch()
    for microbatch in range(3):
        watch.forward("fc", at("forward", microbatch), 10 + microbatch)
    assert not watch.differs("fc", at("recompute", 2), 10)
    assert watch.differs("fc", at("recompute", 2), 9)


def test_steps_that_were_not_sampled_prove_nothing() -> None:
    watch = RecomputeWatch()
    watch.forward("fc", at("forward"), 1)
    assert not watch.differs("fc", at("recompute", step=1), 2)
    assert not watch.differs("other", at("recompute"), 2)
