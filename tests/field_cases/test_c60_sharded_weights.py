"""C60: a weight that is a shard now and whole then; a shard that is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.hooks.observed import Placement

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay


def test_shards_and_empty_ones_are_no_finding(replay: Replay, opened: Opened, normal: Normal) -> None:
    whole = normal(8, 8)
    for step in range(3):
        replay.observe("w", whole[:4], step=step, placement=Placement("shard(0)", "1/2"))
        replay.observe("w", whole[8:], step=step, layer="small", placement=Placement("shard(0)", "2/2"))
        replay.observe("w", whole, step=step, layer="whole")
    replay.session.close()
    run = opened()
    rows = run.sql("select layer, shape, shard, status, amax from tensors where step = 0 order by layer").fetchall()
    assert rows == [
        ("fc", [4, 8], "1/2", "ok", float(whole[:4].abs().max())),
        ("small", [0, 8], "2/2", "empty_shard", None),
        ("whole", [8, 8], None, "ok", float(whole.abs().max())),
    ]
    assert diagnose(run) == ()
