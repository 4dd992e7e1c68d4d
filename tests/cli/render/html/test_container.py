"""The bytes of a page's data: what is read back is what was measured, to half a unit."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fp8debug.cli.render.html.container import DETAILS, Detail, decode, encode, pack, unpack

FINE, _, COARSE = DETAILS
_shapes = array_shapes(min_dims=2, max_dims=2, max_side=7)
_any = arrays(np.float32, _shapes, elements=st.floats(width=32))
_magnitudes = arrays(np.float32, _shapes, elements=st.floats(min_value=0, width=32))
_shares = arrays(np.float32, _shapes, elements=st.floats(min_value=0, max_value=1, width=32))


def _floats(values: list[list[float]]) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@settings(max_examples=25, deadline=None)
@given(_any, st.sampled_from(DETAILS), st.sampled_from(["", "dB", "bits", "share", "elements"]))
def test_values_come_back_to_half_a_unit(values: npt.NDArray[np.float32], detail: Detail, unit: str) -> None:
    packed = pack(values, detail, unit=unit)
    found, wanted = unpack(packed, values.shape), values.astype(np.float64)
    finite = np.isfinite(wanted)
    error = np.abs(found[finite] - wanted[finite])
    is_small = (np.abs(wanted) < packed.unit / 2)[finite]
    assert (error[~is_small] <= packed.unit / 2).all()
    assert (error[is_small] <= packed.unit).all()
    assert ((found == 0) == (wanted == 0))[finite].all()
    np.testing.assert_array_equal(found[~finite], wanted[~finite])


@settings(max_examples=25, deadline=None)
@given(_magnitudes, st.sampled_from(DETAILS))
def test_exponents_come_back_to_half_a_unit(values: npt.NDArray[np.float32], detail: Detail) -> None:
    packed = pack(values, detail, is_log2=True)
    found = unpack(packed, values.shape)
    some = np.isfinite(values) & (values > 0)
    assert (np.abs(found[some] - np.log2(values[some].astype(np.float64))) <= packed.unit / 2).all()
    assert np.isneginf(found[values == 0]).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(values))


@settings(max_examples=20, deadline=None)
@given(_shares)
def test_shares_are_kept_finely_where_they_are_small(values: npt.NDArray[np.float32]) -> None:
    span = float(values.max() - values.min())
    assert pack(values, COARSE, unit="share").unit <= max(2.0**-10, span / 125)
    assert pack(values, FINE, unit="share").unit <= max(2.0**-20, span / 32000)


def test_units_are_as_fine_as_a_reader_needs_and_coarser_where_the_range_asks_for_it() -> None:
    octaves = _floats([[2.0**-10, 2.0**10]])
    assert pack(octaves, FINE, is_log2=True).unit == 1 / 512
    assert pack(octaves, COARSE, is_log2=True).unit == 1 / 8
    assert pack(_floats([[2.0**-40, 2.0**40]]), COARSE, is_log2=True).unit == 1 / 2
    assert pack(_floats([[20, 31.5]]), COARSE, unit="dB").unit == 1 / 4


def test_the_bytes_are_those_that_the_page_reads() -> None:
    values = _floats([[np.nan, 0.0, np.inf, 1.0], [8.0, 2.0, 2.0, 4.0]])
    packed = pack(values, FINE, is_log2=True)
    assert (packed.offset, packed.unit) == (0.0, 2.0**-9)
    codes = [[0, 1, 2, 3], [3 + 3 * 512, 3 + 512, 3 + 512, 3 + 1024]]
    steps = [(code - left) % 65536 for row in codes for left, code in zip([0, *row], row, strict=False)]
    assert packed.data == bytes(step & 255 for step in steps) + bytes(step >> 8 for step in steps)
    small = pack(values, COARSE, is_log2=True)
    assert small.data[4:] == bytes([(3 + 24), (8 - 24) % 256, 0, 8])

    run = {"layers": ["a", "b"], "first_steps": [0, 1, 2, 3], "planes": [{}, {}]}
    text = encode({"name": "</script>", "runs": [run]}, [packed, small])
    raw = gzip.decompress(base64.b64decode(text))
    (n,) = struct.unpack("<I", raw[:4])
    entries = json.loads(raw[4 : 4 + n])["runs"][0]["planes"]
    assert [(entry["at"], entry["bits"]) for entry in entries] == [(0, 16), (16, 8)]
    assert raw[4 + n :] == packed.data + small.data


def test_a_whole_page_comes_back() -> None:
    values = [_floats([[1, 2, 3], [np.nan, 5, 6]]), _floats([[0.25, 0.5, np.inf], [4, 4, 4]])]
    header: dict[str, Any] = {
        "runs": [
            {"layers": ["a", "\udcff"], "first_steps": [0, 1, 2], "planes": [{"metric": "n"}], "loss": [np.nan, 1.0]},
            {"layers": ["b", "c"], "first_steps": [5, 6, 7], "planes": [{"metric": "amax"}]},
        ]
    }
    text = encode(header, [pack(values[0], COARSE), pack(values[1], FINE, is_log2=True)])
    assert text == encode(header, [pack(values[0], COARSE), pack(values[1], FINE, is_log2=True)])
    found, planes = decode(text)
    assert found["runs"][0]["loss"] == [None, 1.0]
    assert found["runs"][0]["layers"] == ["a", "\udcff"]
    np.testing.assert_array_equal(planes[0], values[0])
    np.testing.assert_array_equal(planes[1], [[-2, -1, np.inf], [2, 2, 2]])


@pytest.mark.parametrize("detail", DETAILS)
def test_an_empty_plane_has_no_bytes(detail: Detail) -> None:
    empty = np.empty((0, 0), dtype=np.float32)
    assert pack(empty, detail).data == b""
    assert unpack(pack(empty, detail), (0, 0)).shape == (0, 0)
