"""C03: tensor-parallel ranks that scale the pieces of one tensor each by itself, and read them with one scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.diagnosis import Finding, diagnose

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

Fill = Callable[["SyntheticRun", Callable[..., Any]], None]
Found = Callable[[Fill, int], list[Finding]]
MINE = ("ranks_disagree", "replicas_differ", "rank_gain")


def piece(rank: int, amax: float) -> npt.NDArray[np.float32]:
    x = np.random.default_rng(rank).normal(0, amax / 4, (32, 64)).clip(-amax, amax).astype(np.float32)
    x[0, 0] = amax
    return x


@pytest.fixture
def found(tmp_path: Path, synthetic_run: ModuleType) -> Iterator[Found]:
    """`found(fill, n_ranks)`: findings on ranks in the run that `fill(run, scale)` makes."""
    runs: list[Run] = []

    def make(fill: Fill, n_ranks: int) -> list[Finding]:
        def scaled(amax: float, recipe: str = "delayed", source: str = "framework") -> tuple[Any, ...]:
            return (synthetic_run.ForcedScale(448 / amax, recipe=recipe, source=source),)

        written = synthetic_run.SyntheticRun(tmp_path / "run", world_size=n_ranks)
        fill(written, scaled)
        runs.append(open_run(written.write(), threads=1))
        return [finding for finding in diagnose(runs[-1]) if finding.rule in MINE]

    yield make
    for run in runs:
        run.close()


@pytest.mark.parametrize(("amaxes", "recipe"), [((1.0, 4.0), "delayed"), ((2.0, 1.0, 2.0), "current")])
def test_amax_that_was_not_reduced_over_the_ranks(found: Found, amaxes: tuple[float, ...], recipe: str) -> None:
    def fill(run: SyntheticRun, scaled: Callable[..., Any]) -> None:
        for step in range(3):
            for layer in ("a", "b"):
                for rank, amax in enumerate(amaxes):
                    shard = f"{rank + 1}/{len(amaxes)}"
                    run.add(layer, "x", piece(rank, amax), step=step, rank=rank, shard=shard, placement="shard(0)",
                            scales=scaled(amax, recipe))  # fmt: skip

    ratio = max(amaxes) / min(amaxes)
    (finding,) = found(fill, len(amaxes))
    assert finding.rule == "ranks_disagree"
    assert (finding.severity, finding.confidence, finding.layers) == ("error", "certain", ("a", "b"))
    assert finding.message.startswith(
        "amax not reduced over the ranks: pieces of one tensor were cast with scales that"
    )
    assert f"differ by a factor of {ratio:g} at step" in finding.message
    shown = {entry.title: entry.value for entry in finding.evidence}
    assert shown["largest / smallest scale over the ranks"] == f"{ratio:g}"
    assert (
        f"rank 1: {amaxes[0] / amaxes[1]:.3g}" in shown["gain of each rank's bytes, read with the scale of the lowest"]
    )
    if amaxes == (1.0, 4.0):
        assert finding.worst.db_lost == pytest.approx(31.5 - 2.5, abs=0.1)


def test_replicas_amaxes_and_what_is_no_fault(found: Found) -> None:
    """Copies must agree in values, then in scales; batches of one's own, simulated and reduced scales are fine."""

    def fill(run: SyntheticRun, scaled: Callable[..., Any]) -> None:
        for rank, amax in enumerate((1.0, 4.0)):
            shard = f"{rank + 1}/2"
            run.add("same", "w", piece(0, 1.0), step=0, rank=rank, replica_of=0, scales=scaled(1.0 + rank))
            run.add("other", "w", piece(rank, 1.0 + rank), step=0, rank=rank, replica_of=0, scales=scaled(1.0 + rank))
            run.add("alone", "w", piece(rank, amax), step=0, rank=rank, shard=shard, placement="shard(0)",
                    scales=scaled(amax, "current"))  # fmt: skip
            seq = run.add("amaxes", "x", piece(rank, 1.0), step=0, rank=rank, shard=shard)
            run.add_detail("scales", seq, recipe="delayed", fmt="E4M3", alternate=False, source="framework",
                           scope="rank", scale=1.0, scale_inv=1.0, amax_used=2.0 + 3 * rank, status="ok")  # fmt: skip
            run.add("data parallel", "x", piece(rank, amax), step=0, rank=rank, scales=scaled(amax))
            run.add("simulated", "x", piece(rank, amax), step=0, rank=rank, shard=shard,
                    scales=scaled(amax, "delayed", "simulated"))  # fmt: skip
            run.add("reduced", "x", piece(rank, amax), step=0, rank=rank, shard=shard, scales=scaled(4.0))
            # Two groups of two, each with a batch of its own and a scale that is reduced within it.
            for group in (0, 2):
                run.add("groups", "x", piece(rank, amax), step=0, rank=group + rank, shard=shard,
                        scales=scaled(4.0 + group, "current"))  # fmt: skip
                run.add("copies", "x", piece(group, 1.0 + group), step=0, rank=group + rank, replica_of=group,
                        scales=scaled(4.0 + group, "current"))  # fmt: skip

    by_layer = {finding.worst.layer: finding for finding in found(fill, 4)}
    assert all(len(finding.places) == 1 for finding in by_layer.values())
    assert {layer: (one.rule, one.severity, one.confidence) for layer, one in by_layer.items()} == {
        "same": ("ranks_disagree", "error", "certain"),
        "other": ("replicas_differ", "error", "certain"),
        "amaxes": ("ranks_disagree", "warning", "likely"),
        "alone": ("ranks_disagree", "note", "not_enough_evidence"),
    }
    assert "replicas of one tensor" in by_layer["same"].message
    assert by_layer["other"].message == "rank 1 holds other data than the rank whose copy it is: amax differs"
    assert by_layer["other"].worst.rank == 1
    said = "scales from amaxes that differ by a factor of 2.5 at step 0 (rank 0: 2, rank 1: 5)"
    assert said in by_layer["amaxes"].message
