"""Magnitudes over octaves: against numpy and the codecs of `fp8debug.formats`, and the selections that are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis import open_run
from fp8debug.analysis.distribution import Distribution, distributions, sampled_steps
from fp8debug.formats import FORMATS, fake_quantize, overflows

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]
Floats = npt.NDArray[np.float32]


def bell(seed: int, n: int = 4096, width: float = 1.0) -> Floats:
    """A bell shape, with a few zeros, as values that BF16 holds."""
    x = (np.random.default_rng(seed).standard_normal(n) * width).astype(np.float32)
    x[: n // 50] = 0
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def by_octave(x: npt.NDArray[Any]) -> Counter[int]:
    """Exponents of non-zero elements, by numpy: a magnitude m 2^e has 0.5 <= m < 1."""
    return Counter((np.frexp(x[x != 0].astype(np.float64))[1] - 1).tolist())


def counted(found: Distribution, side: str) -> Counter[int]:
    return Counter({o: n for o, n in zip(found.octaves, getattr(found, side), strict=True) if n})


def test_before_and_after_a_cast_are_those_of_the_codec(new_run: NewRun, synthetic_run: Any) -> None:
    written = new_run(recipes=["current", "delayed"])
    x, scale = bell(0), np.float32(256.0)
    forced = synthetic_run.ForcedScale(float(scale))
    written.add("head", "x", x, step=3, scales=(forced,))
    with open_run(written.write()) as run:
        found = {r: distributions(run, [("head", "x", 3)], r)[0] for r in ("current", "delayed")}
    own = np.float32(448.0) / np.abs(x).max()
    for recipe, used in (("current", own), ("delayed", scale)):
        q = fake_quantize(x * used, FORMATS["E4M3"]) * (np.float32(1) / used)
        seen = found[recipe]
        assert (seen.recipe, seen.fmt, seen.scale, seen.current_scale) == (recipe, "E4M3", used, own)
        assert counted(seen, "before") == by_octave(x)
        assert counted(seen, "after") == by_octave(q)
        assert (seen.n, seen.n_zero, seen.n_zero_after) == (x.size, (x == 0).sum(), (q == 0).sum())
        assert seen.n_overflow == overflows(x * used, FORMATS["E4M3"]).sum()
        assert list(seen.octaves) == list(range(seen.octaves[0], seen.octaves[-1] + 1))
    assert found["delayed"].n_overflow > 0 == found["current"].n_overflow


def test_octaves_are_exact_at_powers_of_two_and_in_subnormal_numbers(new_run: NewRun) -> None:
    tiny = np.float32(2.0**-149)
    edges = np.array(
        [1, np.nextafter(np.float32(1), np.float32(0)), 2.0**-126, 2.0**-127, 3e38, -8, np.inf, np.nan], np.float32
    )
    written = new_run()
    written.add("head", "x", np.append(edges, [tiny, 3 * tiny]).astype(np.float32), step=0, with_current=False)
    with open_run(written.write()) as run:
        (found,) = distributions(run, [("head", "x", 0)], None)
    assert counted(found, "before") == {0: 1, -1: 1, -126: 1, -127: 1, 127: 1, 3: 1, -149: 1, -148: 1}
    assert (found.n, found.n_nonfinite, found.after, found.scale) == (8, 2, (), None)


def test_records_of_a_step_add_up_and_the_scale_is_that_of_the_largest_amax(new_run: NewRun) -> None:
    written = new_run()
    first, second = bell(1), bell(2, width=100.0)
    written.add("head", "dy", first, step=1)
    written.add("head", "dy", second, step=1, microbatch=1)
    written.add("head", "dy", bell(3), step=1, microbatch=1, pass_="recompute")
    written.add("head", "dy", bell(4), step=2)
    with open_run(written.write()) as run:
        (found,) = distributions(run, [("head", "dy", 1)], "current")
    assert counted(found, "before") == by_octave(np.append(first, second))
    assert (found.scale, found.n_scales) == (np.float32(57344.0) / np.abs(second).max(), 2)
    assert (found.amin, found.amax) == (np.abs(first[first != 0]).min(), np.abs(second).max())


def test_a_recipe_without_one_known_scale_gives_before_alone(new_run: NewRun, synthetic_run: Any) -> None:
    written = new_run(recipes=["delayed", "mxfp8", "coat"])
    warm = synthetic_run.ForcedScale(2.0)
    cold = synthetic_run.ForcedScale(None, status="history_incomplete")
    written.add("head", "x", bell(0), step=0, scales=(warm, synthetic_run.ForcedScale(1.0, recipe="coat")))
    written.add("head", "x", bell(1), step=0, microbatch=1, scales=(cold,))
    with open_run(written.write()) as run:
        for recipe in ("delayed", "mxfp8", "coat"):
            (found,) = distributions(run, [("head", "x", 0)], recipe)
            assert (found.recipe, found.fmt, found.after, found.n) == (None, None, (), 2 * 4096)


def test_replicas_on_other_ranks_are_counted_once_and_shards_are_added(new_run: NewRun) -> None:
    written = new_run(world_size=2, recipes=["current"])
    left, right, same = bell(0), bell(1), bell(2)
    for rank, piece in enumerate((left, right)):
        written.add("head", "x", piece, step=0, rank=rank)
        written.add("head", "w", same, step=0, rank=rank, placement="replicate", replica_of=0)
    with open_run(written.write()) as run:
        x, w = distributions(run, [("head", "x", 0), ("head", "w", 0)], "current")
    assert counted(x, "before") == by_octave(np.append(left, right))
    assert counted(w, "before") == by_octave(same)


def test_answers_come_in_the_order_asked_for_each_under_its_own_recipe(new_run: NewRun, synthetic_run: Any) -> None:
    written = new_run(recipes=["current", "delayed"])
    for step in (0, 5):
        written.add("it's", "x", bell(step), step=step, scales=(synthetic_run.ForcedScale(1.0),))
    written.add("it's", "x", bell(7), step=7, sampled=False)
    places = [("it's", "x", 5), ("it's", "x", 7), ("it's", "x", 0), ("it's", "x", 5)]
    with open_run(written.write()) as run:
        found = distributions(run, places, {places[0]: "delayed", places[2]: "current"})
        assert [(each.step, each.recipe) for each in found] == [(5, "delayed"), (0, "current")]
        assert sampled_steps(run, "it's", "x") == (0, 5)
        for each in found:
            rows = run.sql(each.sql).fetchall()
            assert rows[0][0] is None
            told = {octave: (before, after) for octave, before, after in rows if octave is not None}
            listed = zip(each.octaves, zip(each.before, each.after, strict=True), strict=True)
            assert told == {octave: pair for octave, pair in listed if any(pair)}
        assert distributions(run, [], "current") == distributions(run, [("no", "x", 0)], "current") == ()


def test_only_the_needed_row_groups_are_read(tmp_path: Path, new_run: NewRun) -> None:
    import pyarrow.parquet as pq

    written = new_run(recipes=["current"])
    for number in range(20):
        written.add(f"layer{number}", "x", bell(number, n=200), step=0)
    path = written.write()
    for part in (path / "histograms").rglob("*.parquet"):
        pq.write_table(pq.read_table(part), part, row_group_size=200)
    with open_run(path) as run:
        (found,) = distributions(run, [("layer7", "x", 0)], "current")
        plan = run.sql(f"explain analyze {found.sql}").fetchall()[0][1]
    scanned = [line.partition("Row Groups Scanned: ")[2].split()[:3] for line in plan.splitlines()]
    read = max((group for group in scanned if group), key=lambda group: int(group[2]))
    assert int(read[0]) <= 2 < 10 < int(read[2])
