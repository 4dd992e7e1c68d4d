"""C56: parameters that exist in FP8 alone: what their codes tell is told, the rest is NULL with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.analysis.diagnosis import diagnose
from fp8debug.formats import E2M1, E4M3, encode
from fp8debug.hooks.observed import Payload

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay

COLUMNS = "status, recipe, fmt, n, code_amax, amax, saturated, subnormal, scale, scale_min, scale_max, n_nan"


@pytest.mark.captures(
    case="FP8-only parameters (no high-precision tensor)",
    how="a payload without a tensor: a float8 dtype, or uint8 codes of any format",
    sees="amax, saturated, subnormal and zero codes, scale or range of block scales, checksum; view payloads",
    limits="status payload_only; SQNR, gain, cosine and underflow are NULL with that reason",
)
@pytest.mark.parametrize("replay", [{"engine": e} for e in ("torch", "numba")], indirect=True)
def test_codes_and_scale_alone(replay: Replay, opened: Opened) -> None:
    codes = torch.tensor([[448.0, -448.0, 2**-9, 2**-7, 0.0, 1.0, 2.0, -0.0]]).to(torch.float8_e4m3fn)
    replay.observe("w", codes, payload=Payload(codes, E4M3, torch.tensor(0.25), "delayed"))
    replay.observe("w", codes, step=1)  # not even a scale
    replay.session.close()
    run = opened()
    known, bare = run.sql(f"select {COLUMNS} from payloads order by step").fetchall()
    assert known == ("payload_only", "delayed", "E4M3", 8, 448, 112, 2 / 8, 2 / 8, 4, None, None, 0)
    assert bare == ("payload_only", None, "E4M3", 8, 448, None, 2 / 8, 2 / 8, None, None, None, 0)
    checks = run.sql("select gain, sqnr_db, underflow, differs, reason from payload_checks").fetchall()
    assert checks == [(None, None, None, False, "payload_only")] * 2
    for view in ("tensors", "errors", "tensor_errors", "scale_gaps", "evidence", "candidates"):
        assert run.sql(f"from {view}").fetchall() == [], view
    assert run.sql("select count(*) from events where kind not in ('never_fired')").fetchall() == [(0,)]
    (finding,) = (one for one in diagnose(run) if one.rule == "payload_only")
    assert (finding.severity, finding.confidence, finding.layers) == ("note", "not_enough_evidence", ("fc",))
    assert finding.message == (
        "errors unknown because the high-precision tensor no longer exists; saturated codes 25 %, subnormal codes 25 %"
    )
    assert finding.needs is not None
    assert {entry.title: entry.value for entry in finding.evidence}["scale"] == "4"
    assert [one.rule for one in diagnose(run) if one.severity in ("error", "warning")] == []


def test_codes_in_bytes_with_block_scales(replay: Replay, opened: Opened, normal: Normal) -> None:
    w = normal(32, 64)
    scale_inv = w.abs().reshape(32, 4, 16).amax(-1) / 6
    codes = torch.from_numpy(encode((w.reshape(32, 4, 16) / scale_inv[..., None]).reshape(32, 64).numpy(), E2M1))
    whole = scale_inv.repeat_interleave(16, 1)
    replay.observe("w", codes, payload=Payload(codes, E2M1, whole, "nvfp4"))
    replay.observe("x", w, payload=Payload(codes, E2M1, whole, "nvfp4"))
    replay.session.close()
    run = opened()
    alone, beside = run.sql(f"select {COLUMNS} from payloads order by tensor desc").fetchall()[:2][::-1]
    assert {alone[0], beside[0]} == {"payload_only", "ok"}
    for row in (alone, beside):
        assert row[1:6] == ("nvfp4", "E2M1", 2048, 6, None)
        assert row[9:11] == (pytest.approx(float(1 / scale_inv.max())), pytest.approx(float(1 / scale_inv.min())))
    lost = w.double() - torch.from_numpy(_decoded(codes)).double() * whole.double()
    expected = float(10 * torch.log10(w.double().square().sum() / lost.square().sum()))
    rows = run.sql("select sqnr_db, reason from payload_checks order by tensor").fetchall()
    assert rows == [(None, "payload_only"), (pytest.approx(expected, abs=1e-9), None)]


def _decoded(codes: torch.Tensor):  # type: ignore[no-untyped-def]
    from fp8debug.formats import decode

    return decode(codes.numpy(), E2M1)
