"""What a framework's GEMM read, against the tensor it was made of, computed here in NumPy's float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from fp8debug.formats import E2M1, E4M3, E5M2, ELEMENT_FORMATS, Format, encode
from fp8debug.hooks.dtypes import WORDS
from fp8debug.hooks.measure.loading import load_engine
from fp8debug.hooks.observed import Observed, Payload, Placement
from fp8debug.hooks.payloads import decoded, lost_sums
from fp8debug.hooks.recorder import Recorder
from fp8debug.recipes import parse_recipe
from fp8debug.replay import Moment, ScaleInForce

BF16 = torch.bfloat16
FORWARD = Moment(0, 0, 0, "forward")
Row = dict[str, Any]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def new_recorder(*recipes: str, rank: int = 0, detail: tuple[str, ...] = (), engine: str = "torch") -> Recorder:
    return Recorder(load_engine(engine), [parse_recipe(text) for text in recipes], "microbatch", 0, rank, detail)


def rows(recorder: Recorder, *tables: str) -> list[list[Row]]:
    batch = recorder.take_batch()
    made = [batch.rows[table].to_arrow() for table in tables]
    return [[] if table is None else table.to_pylist() for table in made]


@pytest.mark.parametrize("shape", [(7,), (5, 32), (3, 4, 32)], ids=str)
@pytest.mark.parametrize("scaling", ["one", "row", "column", "block"])
@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
def test_sums_are_those_of_every_element(shape: tuple[int, ...], scaling: str, dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=rng()).mul(3).to(dtype)
    x.view(-1)[:4] = torch.tensor([0.0, math.inf, math.nan, 1e-30], dtype=dtype)
    scales = {"one": (), "row": (*shape[:-1], 1), "column": shape[-1:], "block": shape}
    scale_inv = torch.rand(scales[scaling], generator=rng(1)) + 0.01
    codes = (x.float().nan_to_num(0, 1, 1) / scale_inv).clamp(-57344, 57344).to(torch.float8_e5m2)
    got = lost_sums(x, BF16, Payload(codes, E5M2, scale_inv, "framework"))
    seen = x.to(BF16).double().numpy()
    factor = scale_inv.double().numpy()
    q = codes.view(torch.uint8).numpy().view(ml_dtypes.float8_e5m2).astype(np.float64) * factor
    scaled = np.broadcast_to(x.to(BF16).float().numpy() / scale_inv.numpy(), shape)
    kept = np.isfinite(seen)
    seen, q, scaled = seen[kept], q[kept], scaled[kept]
    expected = [
        kept.sum(), (seen != 0).sum(), ((seen != 0) & (q == 0)).sum(), (np.abs(scaled) >= 61440).sum(),
        math.fsum(seen**2), math.fsum(q**2), math.fsum(seen * q), math.fsum((seen - q) ** 2),
    ]  # fmt: skip
    assert got.dtype is torch.float64
    assert got.tolist() == pytest.approx(expected, rel=1e-13)


def test_large_tensors_are_taken_in_parts() -> None:
    x = torch.randn(1025, 2048, generator=rng())
    codes = x.to(torch.float8_e4m3fn)
    got = lost_sums(x, torch.float32, Payload(codes, E4M3, torch.ones(1025, 1), "rowwise"))
    error = x.double() - codes.double()
    assert got[0] == x.numel()
    assert got[7].item() == pytest.approx(float(error.square().sum()), rel=1e-12)


@pytest.mark.parametrize("engine", ["torch", "numba"])
@pytest.mark.parametrize("fmt", ELEMENT_FORMATS.values(), ids=lambda fmt: fmt.name)
def test_bytes_of_any_format(fmt: Format, engine: str) -> None:
    x = torch.randn(16, 24, generator=rng()) * fmt.max / 3
    codes = torch.from_numpy(encode(x.numpy(), fmt))
    recorder = new_recorder("current", engine=engine)
    seen = Observed("fc", "w", x.to(BF16), BF16, FORWARD, payload=Payload(codes, fmt, 2.0, "current"))
    recorder.record(seen, sampled=True, raw=False)
    batch = recorder.take_batch()
    tensors = batch.rows["tensors"].to_arrow()
    assert tensors is not None
    whole, payload = tensors.to_pylist()
    values = decoded(codes, fmt)
    assert (whole["dtype"], payload["dtype"], payload["status"]) == ("bfloat16", WORDS[fmt.name], "ok")
    assert (payload["n"], payload["n_zero"]) == (384, int((values == 0).sum()))
    assert payload["amax"] == values.abs().max()
    assert payload["amin"] == values.abs()[values != 0].min()
    histograms = batch.histograms.to_arrow()
    assert histograms is not None
    counted = {
        row["value"]: row["count"] for row in histograms.to_pylist() if row["counted"] == "payload" and row["value"]
    }
    found, counts = np.unique(values[values != 0].numpy(), return_counts=True)
    assert counted == dict(zip(found.tolist(), counts.tolist(), strict=True))
    oracle = getattr(ml_dtypes, WORDS[fmt.name])
    assert np.array_equal(codes.numpy().view(oracle).astype(np.float32), values.numpy())


def test_what_is_no_payload_is_an_event() -> None:
    recorder = new_recorder("current")
    for codes, fmt in ((torch.zeros(2, 2, dtype=torch.int32), E4M3), (torch.full((2, 2), 99, dtype=torch.uint8), E2M1)):
        seen = Observed(fmt.name, "w", torch.ones(2, 2), BF16, FORWARD, payload=Payload(codes, fmt, 1.0, "current"))
        recorder.record(seen, sampled=True, raw=False)
    misfit = Payload(torch.ones(2, 2).to(torch.float8_e4m3fn), E4M3, torch.ones(3, 1), "rowwise")
    recorder.record(Observed("fc", "x", torch.ones(2, 2), BF16, FORWARD, payload=misfit), sampled=True, raw=False)
    tensors, events, errors = rows(recorder, "tensors", "events", "errors")
    assert "payload" not in {row["source"] for row in errors if row["layer"] != "E2M1"}
    assert [(e["layer"], e["kind"]) for e in events] == [("E4M3", "unsupported"), ("E2M1", "unsupported")]
    assert [t["status"][:11] for t in sorted(tensors, key=lambda t: t["seq"])] == ["ok", "unsupported"] * 2 + [
        "ok",
        "ok",
    ]


def test_histories_and_scales_never_see_payloads() -> None:
    """Delayed scaling with one amax of memory follows the tensor, whatever its codes say."""
    recorder = new_recorder("delayed:amax_history_len=1")
    given = ScaleInForce("delayed:margin=3", E4M3, False, None, None, 7.0, 16, 5, 9, 3, "ok", True)
    for step in range(3):
        x = torch.full((4, 4), 2.0**step, dtype=BF16)
        codes = torch.full((4, 4), 448.0).to(torch.float8_e4m3fn)
        payload = Payload(codes, E4M3, torch.tensor(2.0**step / 448), "delayed:margin=3", (given,))
        recorder.record(
            Observed("fc", "x", x, BF16, Moment(step, 0, 0, "forward"), payload=payload), sampled=True, raw=False
        )
    scales, errors = rows(recorder, "scales", "errors")
    simulated = [row["scale"] for row in scales if row["source"] == "simulated"]
    assert simulated == [1.0, 448.0, 224.0]
    own = [row for row in scales if row["source"] == "framework"]
    assert [row["scale_inv"] for row in own if row["seq"] % 2] == pytest.approx([2.0**s / 448 for s in range(3)])
    state = ("amax_used", "history_len", "history_zeros", "n_rolls", "set_at_step", "ran")
    assert all([row[name] for name in state] == [7.0, 16, 5, 9, 3, True] for row in own)
    assert [(r["source"], r["sum_err2"]) for r in errors if r["recipe"] == "delayed:margin=3"] == [
        (source, pytest.approx(0, abs=1e-9)) for _ in range(3) for source in ("framework", "payload")
    ]


def test_recipes_that_are_not_ours_are_kept_by_name() -> None:
    recorder = new_recorder("current")
    codes = torch.ones(2, 2).to(torch.float8_e4m3fn)
    seen = Observed("fc", "w", torch.ones(2, 2), BF16, FORWARD, payload=Payload(codes, E4M3, 1.0, "their_own"))
    recorder.record(seen, sampled=True, raw=False)
    scales, errors = rows(recorder, "scales", "errors")
    assert [(row["recipe"], row["seq"]) for row in scales] == [("their_own", 1)]
    assert [(row["recipe"], row["source"]) for row in errors] == [("current", "simulated"), ("their_own", "payload")]


def test_a_replica_is_health_and_checksum_alone() -> None:
    """The rank that owns the data has the rest; both see the same bytes."""
    w = torch.randn(8, 8, generator=rng()).to(BF16)
    codes = w.to(torch.float8_e4m3fn)
    checksums = []
    for rank in (0, 1):
        recorder = new_recorder("current", "mxfp8", rank=rank, detail=("blocks", "channels"))
        seen = Observed(
            "fc", "w", w, BF16, FORWARD, placement=Placement("replicate", None, 0),
            payload=Payload(codes, E4M3, 1.0, "current"),
        )  # fmt: skip
        facts = recorder.record(seen, sampled=True, raw=False)
        batch = recorder.take_batch()
        tensors = batch.rows["tensors"].to_arrow()
        assert tensors is not None
        (whole, payload) = tensors.to_pylist()
        assert (whole["replica_of"], whole["n"], whole["amax"]) == (0, 64, float(w.abs().max()))
        checksums.append((whole["checksum"], payload["checksum"]))
        details = [batch.rows[table].to_arrow() for table in ("errors", "blocks", "channels")]
        assert (facts is None, whole["sampled"], payload["sampled"]) == (
            (True, False, False) if rank else (False, True, True)
        )
        assert all((table is None) == bool(rank) for table in (*details, batch.histograms.to_arrow()))
    assert checksums[0] == checksums[1] and None not in checksums[0]


def test_pieces_and_batches_without_elements_have_words_of_their_own() -> None:
    recorder = new_recorder("current")
    for layer, tensor, placement in (
        ("a", "x", Placement()), ("b", "w", Placement("shard(0)", "3/4")), ("c", "w", Placement())
    ):  # fmt: skip
        seen = Observed(layer, tensor, torch.empty(0, 8, dtype=BF16), BF16, FORWARD, placement=placement)
        recorder.record(seen, sampled=True, raw=False)
    (tensors,) = rows(recorder, "tensors")
    assert [row["status"] for row in tensors] == ["no_tokens", "empty_shard", "empty"]
    assert [(row["n"], row["amax"], row["amin"]) for row in tensors] == [(0, None, None)] * 3


def test_the_first_value_that_is_not_finite_is_said_once() -> None:
    recorder = new_recorder("current")
    x = torch.ones(4, 4, dtype=BF16)
    bad = x.clone()
    bad[2, 1], bad[3, 0] = math.nan, math.inf
    for step, (tensor, value) in enumerate((("x", x), ("w", bad), ("dy", bad))):
        for pass_ in ("eval", "forward"):
            seen = Observed("fc", tensor, value, BF16, Moment(step, 1, 0, pass_))
            recorder.record(seen, sampled=False, raw=False)
    (events,) = rows(recorder, "events")
    ((event),) = events
    assert (event["kind"], event["step"], event["layer"], event["tensor"]) == ("nonfinite", 1, "fc", "w")
    assert event["message"] == (
        "the first in order of execution: step 1, micro-batch 1, forward, fc w, row 2: 1 NaN and 1 Inf values"
    )
