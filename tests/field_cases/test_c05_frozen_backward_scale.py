"""C05: under activation checkpointing the scale of gradients stays at its first value, and their history empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.formats import E5M2
from fp8debug.replay import ScaleInForce

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

ONE = np.float32(1)


def test_scale_frozen_since_step_0(replay: Replay, opened: Opened, normal: Normal) -> None:
    never_ran = ScaleInForce("delayed:amax_history_len=16", E5M2, False, ONE, ONE, 0.0, 16, 16, 10, None, "ok", False)
    for step in range(10):
        dy = normal(128, 256, std=1e-6 if step < 5 else 1e-5, seed=step).bfloat16()
        replay.observe("dy", dy, step=step, framework=(never_ran,))
    replay.session.close()
    run = opened()
    rows = run.sql(
        "select underflow, cosine, sqnr_db, scale_gap_bits, gap_source from tensor_errors "
        "where recipe like 'delayed%' order by step"
    ).fetchall()
    assert [row[:2] for row in rows[:5]] == [(1.0, None)] * 5  # no cosine: what is left is zero
    for underflow, _, sqnr_db, gap, source in rows[5:]:
        assert underflow == pytest.approx(0.55, rel=0.05)
        assert sqnr_db == pytest.approx(7.2, abs=0.5)
        assert gap == pytest.approx(-30, abs=1)
        assert source == "framework"
    state = run.sql(
        "select distinct scale, history_len, history_zeros, ran from scales where source = 'framework'"
    ).fetchall()
    assert state == [(1.0, 16, 16, False)]
    ((layer, tensor, scale, since, last, n_steps, zero, is_off, message),) = run.sql(
        "select layer, tensor, scale, since_step, last_step, n_steps, history_is_zero, is_off, message "
        "from frozen_scales"
    ).fetchall()
    assert (layer, tensor, scale, since, last, n_steps, zero, is_off) == ("fc", "dy", 1.0, 0, 9, 10, True, True)
    assert message.startswith("scale frozen at 1 since step 0 while the amax moved from ")


def test_a_scale_that_follows_is_not_frozen(replay: Replay, opened: Opened, normal: Normal) -> None:
    for step in range(4):
        dy = normal(16, 64, std=10.0**-step, seed=step).bfloat16()
        scale = np.float32(57344 / float(dy.abs().amax()))
        given = ScaleInForce("delayed", E5M2, False, scale, 1 / scale, 1.0, 16, 0, 10, step - 1, "ok")
        replay.observe("dy", dy, step=step, framework=(given,))
    replay.session.close()
    assert opened().sql("from frozen_scales").fetchall() == []
