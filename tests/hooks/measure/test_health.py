"""The health record and the rows that are not finite."""

from __future__ import annotations

import pytest
import torch

from fp8debug.hooks.measure import Health, nonfinite_rows


def test_non_finite_elements_are_seen_even_when_some_counts_are_missing() -> None:
    assert not Health(4, None, None, 0, 0, 0, None, 1.0).has_nonfinite
    assert not Health(4, None, None, None, None, None, None, 1.0).has_nonfinite
    assert Health(4, None, None, None, 0, 1, None, 1.0).has_nonfinite


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e5m2])
def test_rows_are_those_of_the_last_dimension(dtype: torch.dtype) -> None:
    t = torch.ones(2, 3, 5)
    t[0, 2, 4], t[1, 1, 0], t[1, 1, 3] = torch.nan, torch.inf, -torch.inf
    assert nonfinite_rows(t.to(dtype)) == (2, 2)
    assert nonfinite_rows(t.to(dtype).transpose(0, 1)) == (2, 3)


def test_a_vector_is_one_row_and_nothing_has_none() -> None:
    assert nonfinite_rows(torch.tensor([1.0, torch.nan, torch.inf])) == (1, 0)
    assert nonfinite_rows(torch.tensor(torch.nan)) == (1, 0)
    assert nonfinite_rows(torch.ones(3, 4)) == (0, -1)
    assert nonfinite_rows(torch.empty(0, 4)) == (0, -1)
    assert nonfinite_rows(torch.empty(4, 0)) == (0, -1)


def test_gradients_are_left_alone() -> None:
    t = torch.tensor([[1.0, torch.nan]], requires_grad=True)
    assert nonfinite_rows(t * 2) == (1, 0)
    assert t.grad is None
