"""Ranks merged by views: figures of the whole tensor, worked out by numpy over its concatenated pieces."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.merge.views import views_of_ranks
from fp8debug.analysis.whatif import whatif
from fp8debug.formats import E4M3, E5M2, Format
from fp8debug.metrics import error_sums
from fp8debug.recipes import DelayedScaling

Array = npt.NDArray[np.float32]
Bins = dict[tuple[float, bool], int]
HISTORY = DelayedScaling(amax_history_len=4)
STEPS = 6


def bf16(module: ModuleType, rng: np.random.Generator, deviation: float, shape: tuple[int, ...]) -> Array:
    x: Array = module.as_bfloat16(rng.normal(0, deviation, shape))
    return x


def bins_of(x: Array) -> Bins:
    """(value, sign bit) -> how often, by numpy over the whole tensor."""
    bits, counts = np.unique(x.ravel().view(np.uint32), return_counts=True)
    return {(float(v), bool(np.signbit(v))): int(c) for v, c in zip(bits.view(np.float32), counts, strict=True)}


def merged_bins(run: Run, layer: str, tensor: str) -> list[Bins]:
    """The merged histogram of each step."""
    rows = run.sql(
        "select step, value, signbit(value), count from merged_histograms where layer = $layer and tensor = $tensor",
        layer=layer, tensor=tensor,
    ).fetchall()  # fmt: skip
    found: list[Bins] = [{} for _ in range(STEPS)]
    for step, value, sign, count in rows:
        found[step][value, sign] = count
    return found


def by_step(run: Run, query: str, **parameters: Any) -> list[dict[str, Any]]:
    """The rows of a query that has one a step, in order of steps."""
    relation = run.sql(query, **parameters)
    rows = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
    rows.sort(key=lambda row: row["step"])
    assert [row["step"] for row in rows] == list(range(STEPS))
    return rows


def one(run: Run, query: str, **parameters: Any) -> dict[str, Any]:
    relation = run.sql(query, **parameters)
    rows = relation.fetchall()
    assert len(rows) == 1, rows
    return dict(zip(relation.columns, rows[0], strict=True))


def check_group(run: Run, tensor: str, whole: list[Array], fmt: Format, layer: str = "fc") -> None:
    """Group scales and merged errors against one history and one cast over the whole tensor of each step."""
    state = HISTORY.new_state([fmt])
    key = {"layer": layer, "tensor": tensor, "fmt": fmt.name}
    where = "where layer = $layer and tensor = $tensor and fmt = $fmt"
    groups = by_step(run, f"select step, amax, scale, n_rolls from group_scales {where}", **key)
    merged = by_step(run, f"from merged_errors {where} and scale_scope = 'group'", **key)
    for step, (x, group, got) in enumerate(zip(whole, groups, merged, strict=True)):
        scale = state.scale(fmt)
        assert group == {"step": step, "amax": np.abs(x).max(), "scale": scale, "n_rolls": step}
        want = error_sums(*np.unique(x, return_counts=True), scale, fmt)
        assert got["scale"] == scale
        for name in ("n", "n_nonzero", "n_underflow", "n_overflow"):
            assert got[name] == getattr(want, name), name
        for name in ("sum_x2", "sum_q2", "sum_xq", "sum_err2"):
            assert got[name] == pytest.approx(getattr(want, name), rel=1e-12), name
        state.observe(float(np.abs(x).max()))
        state.roll(step)


def test_data_parallel(new_ranks: Callable[..., Any], synthetic_run: ModuleType) -> None:
    rng = np.random.default_rng(0)
    written = new_ranks(4)
    xs, ws, dys = [], [], []
    for step in range(STEPS):
        # Ranks differ in size and in magnitude, rank 3 has no tokens in step 2.
        x = {r: bf16(synthetic_run, rng, 2.0**r, (8 + r if (r, step) != (3, 2) else 0, 16)) for r in range(4)}
        x[0].flat[:3] = (0.0, -0.0, 0.0)
        dy = {r: bf16(synthetic_run, rng, 1e-3 * 4**r, (8, 16)) for r in range(4)}
        w = bf16(synthetic_run, rng, 0.02 * (1 + step), (16, 16))
        written.give("fc", "x", x, step=step)
        written.give("fc", "w", dict.fromkeys(range(4), w), step=step, placement="replicate",
                     owners=dict.fromkeys(range(4), 0))  # fmt: skip
        written.give("fc", "dy", dy, step=step)
        xs.append(np.concatenate(list(x.values())))
        ws.append(w)
        dys.append(np.concatenate(list(dy.values())))
    written.steps(range(STEPS))
    with open_run(written.write()) as run:
        assert merged_bins(run, "fc", "x") == [bins_of(x) for x in xs]
        assert merged_bins(run, "fc", "w") == [bins_of(w) for w in ws]
        merged = one(run, "from merged_tensors where step = 0 and tensor = 'x'")
        assert (merged["n"], merged["n_zero"], merged["n_neg_zero"]) == (xs[0].size, (xs[0] == 0).sum(), 1)
        assert merged["amax"] == np.abs(xs[0]).max()
        assert merged["amin"] == np.abs(xs[0][xs[0] != 0]).min()
        assert (merged["ranks"], merged["is_complete"]) == ([0, 1, 2, 3], True)
        assert one(run, "from merged_tensors where step = 0 and tensor = 'w'")["ranks"] == [0]
        check_group(run, "x", xs, E4M3)
        check_group(run, "w", ws, E4M3)
        check_group(run, "dy", dys, E5M2)
        check_group(run, "dy", dys, E4M3)
        # A recipe that scales each record: its rows add as they are.
        (sums,) = run.sql(
            "select sum(sum_err2), sum(n)::bigint from errors where step = 1 and tensor = 'x' and recipe = 'current'"
        ).fetchall()
        added = one(run, "from merged_errors where step = 1 and tensor = 'x' and recipe = 'current'")
        assert (added["scale_scope"], added["sum_err2"], added["n"]) == ("record", *sums)
        assert run.sql("from replica_checks where not agree").fetchall() == []
        assert one(run, "select count(*) as n, min(n_replicas) as low from replica_checks") == {"n": STEPS, "low": 4}


def test_tensor_parallel(new_ranks: Callable[..., Any], synthetic_run: ModuleType) -> None:
    rng = np.random.default_rng(1)
    written = new_ranks(4)
    ws, xs = [], []
    uneven = [0, 5, 10, 15, 15]  # the last shard is empty
    for step in range(STEPS):
        w = bf16(synthetic_run, rng, 0.02, (15, 16))
        w[:5] *= np.float32(8)
        x = bf16(synthetic_run, rng, 1.0 + step, (8, 16))
        written.give("col", "w", {r: w[uneven[r] : uneven[r + 1]] for r in range(4)}, step=step, placement="shard(0)",
                     shards={r: f"{r}/4" for r in range(4)})  # fmt: skip
        written.give("col", "x", dict.fromkeys(range(4), x), step=step, placement="replicate",
                     owners=dict.fromkeys(range(4), 0))  # fmt: skip
        # Two data parallel groups of two tensor parallel ranks: rank 2 and 3 hold what 0 and 1 hold.
        written.give("row", "w", {r: w[:14].reshape(2, -1, 16)[r % 2] for r in range(4)}, step=step,
                     placement="replicate,shard(1)", shards={r: f"{r % 2}/2" for r in range(4)},
                     owners={r: r % 2 for r in range(4)})  # fmt: skip
        written.give("row", "y", dict.fromkeys(range(4), x), step=step, placement="partial")
        ws.append(w)
        xs.append(x)
    written.steps(range(STEPS))
    with open_run(written.write()) as run:
        assert merged_bins(run, "col", "x") == [bins_of(x) for x in xs]
        assert merged_bins(run, "col", "w") == [bins_of(w) for w in ws]
        rows = run.sql("select layer, ranks, n_pieces, is_complete, n from merged_tensors where step = 1 "
                       "order by layer, tensor").fetchall()  # fmt: skip
        assert rows == [
            ("col", [0, 1, 2, 3], 4, True, 240), ("col", [0], None, True, 128), ("row", [0, 1], 2, True, 224)
        ]  # fmt: skip
        check_group(run, "w", ws, E4M3, layer="col")
        check_group(run, "w", [w[:14] for w in ws], E4M3, layer="row")
        # Partial sums are in nothing that is merged, and keep their own figures.
        assert run.sql("from merged_histograms where tensor = 'y'").fetchall() == []
        assert run.sql("from group_scales where tensor = 'y'").fetchall() == []
        scopes = run.sql("select distinct scale_scope from error_ratios where tensor = 'y'").fetchall()
        assert sorted(scopes) == [("rank",), ("record",)]


def test_whatif_replays_groups(new_ranks: Callable[..., Any], synthetic_run: ModuleType) -> None:
    rng = np.random.default_rng(5)
    written = new_ranks(2)
    recipe = DelayedScaling(amax_history_len=2, margin=1)
    state, sums = recipe.new_state([E4M3]), []
    for step in range(STEPS):
        x = {r: bf16(synthetic_run, rng, 2.0 ** (step % 3 + r), (8, 16)) for r in range(2)}
        written.give("fc", "x", x, step=step)
        written.give("fc", "w", dict.fromkeys(range(2), x[0]), step=step, placement="replicate",
                     owners=dict.fromkeys(range(2), 0))  # fmt: skip
        written.give("fc", "y", x, step=step, placement="partial")
        whole = np.concatenate(list(x.values()))
        sums.append(error_sums(*np.unique(whole, return_counts=True), state.scale(E4M3), E4M3))
        state.observe(float(np.abs(whole).max()))
        state.roll(step)
    with open_run(written.write(), thresholds={"warmup_rolls": 0}) as run:
        answer = whatif(run, [recipe.text, "current"])
        by_tensor = {entry.tensor: entry for entry in answer.operands if entry.recipe == recipe.text}
        assert set(by_tensor) == {"x", "w"}
        assert by_tensor["x"].sum_err2 == pytest.approx(sum(s.sum_err2 for s in sums), rel=1e-12)
        assert by_tensor["x"].n == sum(s.n for s in sums)
        assert by_tensor["w"].n == by_tensor["x"].n / 2
        told = [note.message for note in answer.notes if note.kind == "ranks"]
        assert "largest amax over ranks" in told[0]
        assert told[1] == "fc y are left out: partial sums on each rank, which no GEMM reads"
        # What was recorded under current scaling is what the histograms give.
        recorded = one(run, "select sum(sum_err2) as e from merged_errors where tensor = 'x' and recipe = 'current'")
        (current,) = [entry for entry in answer.operands if (entry.tensor, entry.recipe) == ("x", "current")]
        assert current.sum_err2 == pytest.approx(recorded["e"], rel=1e-12)


def test_micro_batches_and_a_layer_called_on_some_ranks_alone(
    new_ranks: Callable[..., Any], synthetic_run: ModuleType
) -> None:
    rng = np.random.default_rng(2)
    written, amaxes = new_ranks(2), []
    for step in range(4):
        for microbatch in range(2):
            x = {r: bf16(synthetic_run, rng, 1 + 4 * r, (8, 8)) for r in range(2)}
            if microbatch:
                del x[step % 2]
            written.give("expert", "x", x, step=step, microbatch=microbatch)
            amaxes.append(max(float(np.abs(v).max()) for v in x.values()))
        written.give("fc", "x", x | {step % 2: x[1 - step % 2]}, step=step)
    with open_run(written.write()) as run:
        scales = run.sql("select scale, status from group_scales where layer = 'expert' order by step, microbatch")
        got = scales.fetchall()
    state = HISTORY.new_state([E4M3])
    for (scale, status), amax in zip(got, amaxes, strict=True):
        assert (scale, status) == (state.scale(E4M3), "ok" if state.n_rolls else "warmup")
        state.observe(amax)
        state.roll(0)


def test_a_rank_that_stops_leaves_the_history_incomplete(
    new_ranks: Callable[..., Any], synthetic_run: ModuleType
) -> None:
    rng = np.random.default_rng(3)
    written = new_ranks(2)
    for step in range(STEPS):
        ranks = range(2) if step < 3 else range(1)
        written.give("fc", "x", {r: bf16(synthetic_run, rng, 1.0, (8, 8)) for r in ranks}, step=step)
        written.give("fc", "w", dict.fromkeys(ranks, np.ones((4, 4), np.float32)), step=step, placement="replicate",
                     owners=dict.fromkeys(ranks, 0))  # fmt: skip
    with open_run(written.write()) as run:
        query = "select step, status from group_scales where tensor = '{}' order by step"
        assert run.sql(query.format("x")).fetchall() == [
            (0, "warmup"), (1, "ok"), (2, "ok"), (3, "ok"), (4, "history_incomplete"), (5, "history_incomplete")
        ]  # fmt: skip
        # What the rank that went on holds too is not missing.
        assert {status for _, status in run.sql(query.format("w")).fetchall()} == {"warmup", "ok"}
        assert run.sql("select step from merged_tensors where not is_complete order by step").fetchall() == [
            (3,), (4,), (5,)
        ]  # fmt: skip
        last = one(run, "select max(step) as step from merged_errors where scale_scope = 'group' and tensor = 'x'")
        assert last == {"step": 3}


@pytest.mark.parametrize(
    ("stopped", "after"),
    [
        ({"layers_stopped": ["fc"], "tensors_stopped": []}, "history_incomplete"),
        ({"layers_stopped": [], "tensors_stopped": ["x"]}, "history_incomplete"),
        ({"layers_stopped": ["other"], "tensors_stopped": ["dy"]}, "ok"),
    ],
)
def test_a_pause_that_was_asked_for_leaves_the_history_incomplete(
    stopped: dict[str, list[str]], after: str, new_ranks: Callable[..., Any], synthetic_run: ModuleType
) -> None:
    """fp8debug control left the operand out of steps 2 and 3: no history knows the amaxes of these."""
    rng = np.random.default_rng(6)
    changes = [
        {"serial": 1, "step": 1, **stopped},
        {"serial": 2, "step": 3, "layers_stopped": [], "tensors_stopped": []},
    ]
    written = new_ranks(2, segments=[{"segment": 0, "changes": changes}])
    for step in (0, 1, 4, 5):
        written.give("fc", "x", {r: bf16(synthetic_run, rng, 1.0, (8, 8)) for r in range(2)}, step=step)
    with open_run(written.write()) as run:
        assert run.sql("select step, status from group_scales order by step").fetchall() == [
            (0, "warmup"), (1, "ok"), (4, after), (5, after)
        ]  # fmt: skip


def test_the_lowest_replica_present_stands_for_a_missing_one(new_ranks: Callable[..., Any]) -> None:
    written = new_ranks(4)
    w = np.arange(16, dtype=np.float32)
    written.give("fc", "w", {r: w[8 * (r % 2) :][:8] for r in (1, 2, 3)}, step=0, placement="replicate,shard(0)",
                 shards={r: f"{r % 2}/2" for r in range(4)}, owners={r: r % 2 for r in range(4)})  # fmt: skip
    with open_run(written.write()) as run:
        assert run.sql("select rank, owner from shards order by rank").fetchall() == [(1, 1), (2, 0)]
        assert one(run, "select ranks, amax, n from merged_tensors") == {"ranks": [1, 2], "amax": 15.0, "n": 16}


def test_replicas_that_differ(new_ranks: Callable[..., Any]) -> None:
    written = new_ranks(4)
    owners = dict.fromkeys(range(4), 0)
    for step in range(3):
        same = np.arange(8, dtype=np.float32)
        pieces = dict.fromkeys(range(4), same)
        if step == 1:
            pieces[2] = same[::-1].copy()
        if step == 2:
            pieces[3] = np.array([*same[:-1], np.inf], np.float32)
        written.give("fc", "w", pieces, step=step, placement="replicate", owners=owners)
    with open_run(written.write()) as run:
        rows = run.sql("select step, agree, differs, odd_ranks from replica_checks order by step").fetchall()
    assert rows == [
        (0, True, [], []), (1, False, ["checksum"], [2]), (2, False, ["amax", "nonfinite", "checksum"], [3])
    ]  # fmt: skip


def test_a_scope_of_steps_keeps_the_histories(new_ranks: Callable[..., Any], synthetic_run: ModuleType) -> None:
    from fp8debug.analysis.scope import Scope

    rng = np.random.default_rng(4)
    written = new_ranks(2)
    for step in range(STEPS):
        written.give("fc", "x", {r: bf16(synthetic_run, rng, 2.0**-step, (8, 8)) for r in range(2)}, step=step)
    path = written.write()
    query = "select step, scale from scale_gaps where step >= 4 order by step"
    with open_run(path) as run, open_run(path, scope=Scope(steps=((4, None),))) as narrowed:
        assert narrowed.sql(query).fetchall() == run.sql(query).fetchall()
        assert len(run.sql(query).fetchall()) == 2


def test_other_views_stand_in_for_shipped_ones(new_ranks: Callable[..., Any], empty_run: Run) -> None:
    written = new_ranks(2)
    written.give("fc", "x", {r: np.ones((2, 2), np.float32) for r in range(2)}, step=0)
    with open_run(written.write()) as run:
        assert run.has_groups
        for name, file in views_of_ranks().items():
            assert file.text.startswith("-- ")
            assert file.text.endswith(";\n")
            assert all(len(line) <= 120 for line in file.text.splitlines())
            shipped, here = empty_run.table(name), run.table(name)
            assert set(here.columns) <= set(shipped.columns), name
            types = dict(zip(shipped.columns, shipped.types, strict=True))
            assert [str(kind) for kind in here.types] == [str(types[column]) for column in here.columns], name
