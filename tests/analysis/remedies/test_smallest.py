"""The chosen sets against all subsets there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug.analysis.remedies.smallest import Share, best_within, fewest_layers

# Few distinct sizes, as layers have; noise over nine decades, and none at all.
SHARES = st.lists(
    st.tuples(
        st.sampled_from([1.0, 3.0, 4.0, 12.0, 50.0]),
        st.one_of(st.just(0.0), st.floats(1e-9, 1.0)),
    ),
    min_size=1,
    max_size=8,
).map(lambda pairs: [Share(f"layer{i}", flops, flops * nsr) for i, (flops, nsr) in enumerate(pairs)])


def subsets(shares: Sequence[Share]) -> Iterator[tuple[Share, ...]]:
    for size in range(len(shares) + 1):
        yield from itertools.combinations(shares, size)


def flops_of(shares: Sequence[Share]) -> float:
    return math.fsum(share.flops for share in shares)


def noise_of(shares: Sequence[Share]) -> float:
    return math.fsum(share.noise for share in shares)


def left(shares: Sequence[Share], removed: Sequence[Share]) -> float:
    return noise_of([share for share in shares if share not in removed])


@settings(max_examples=100, deadline=None)
@given(SHARES, st.floats(1e-9, 1.0))
def test_no_smaller_set_reaches_the_target(shares: list[Share], target: float) -> None:
    picked, reached = fewest_layers(shares, target)
    limit = target * flops_of(shares)
    assert reached
    assert left(shares, picked) <= limit
    assert len(picked) == min(len(subset) for subset in subsets(shares) if left(shares, subset) <= limit)


@settings(max_examples=100, deadline=None)
@given(SHARES, st.floats(0.0, 1.0))
def test_no_other_set_within_the_budget_takes_more_noise_away(shares: list[Share], budget: float) -> None:
    limit = budget * flops_of(shares)
    picked, is_exact = best_within(shares, limit)
    assert is_exact
    assert flops_of(picked) <= limit * (1 + 1e-9)
    best = max(noise_of(subset) for subset in subsets(shares) if flops_of(subset) <= limit)
    assert math.isclose(noise_of(picked), best, rel_tol=1e-9) or noise_of(picked) > best


def test_no_noise_needs_no_layer() -> None:
    quiet = [Share("a", 5.0, 0.0), Share("b", 0.0, 0.0)]
    assert fewest_layers(quiet, 0.0) == ((), True)
    assert best_within(quiet, 5.0) == ((), True)


def test_a_hundred_layers_of_four_sizes_are_no_matter() -> None:
    shares = [Share(f"layer{i}", (1.0, 3.0, 4.0, 4.5)[i % 4], 1e-3 * ((i * 37) % 101 + 1)) for i in range(400)]
    picked, is_exact = best_within(shares, 0.05 * flops_of(shares))
    assert is_exact
    assert flops_of(picked) <= 0.05 * flops_of(shares)
    # Never worse than taking the best noise for the FLOPs until one does not fit.
    greedy, spent = 0.0, 0.0
    for share in sorted(shares, key=lambda share: -share.noise / share.flops):
        if spent + share.flops > 0.05 * flops_of(shares):
            break
        greedy, spent = greedy + share.noise, spent + share.flops
    assert noise_of(picked) >= greedy
