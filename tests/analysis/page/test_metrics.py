"""Bands follow the limits of the rules, each format's own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fp8debug.analysis.page.metrics import metrics_of
from fp8debug.analysis.page.records import Band, Metric, Plane
from fp8debug.analysis.thresholds import resolve


def plane(metric: str, fmt: str | None, *values: float) -> Plane:
    return Plane(metric, "x", None if fmt is None else "delayed", fmt, np.array([values], dtype=np.float32), "")


def metric_of(*planes: Plane, **thresholds: float) -> Metric:
    return next(found for found in metrics_of(planes, resolve(thresholds)) if found.name == planes[0].metric)


def band_at(bands: tuple[Band, ...], value: float) -> Band:
    return next(band for band in bands if band.below is None or value < band.below)


def severities(bands: tuple[Band, ...], *values: float) -> list[int]:
    return [band_at(bands, value).severity for value in values]


def test_sqnr_is_judged_by_the_format() -> None:
    metric = metric_of(*(plane("sqnr_db", fmt, 20.0) for fmt in ("E4M3", "E5M2", "E2M1")))
    by_fmt = dict(metric.bands_by_fmt)
    assert list(by_fmt) == ["E4M3", "E5M2"]
    assert severities(by_fmt["E4M3"], 31.5, 28.6, 28.4, 24.7, 24.5, 12.2, 0.0) == [0, 0, 1, 1, 2, 3, 4]
    assert severities(by_fmt["E5M2"], 24.5, 22.5, 19.0, 9.5, math.inf) == [0, 1, 2, 3, 0]
    assert severities(metric.bands, 20.0, -1.0) == [0, 4]
    assert metric.worst == "smallest"


def test_a_gemm_is_judged_by_both_formats() -> None:
    bands = dict(metric_of(plane("gemm_sqnr_db", "E5M2 x E4M3", 1.0)).bands_by_fmt)["E5M2 x E4M3"]
    # Roundings of both that add up, and roundings that know nothing of each other.
    added = -20 * math.log10(10 ** (-19.1 / 20) + 10 ** (-24.6 / 20))
    apart = -10 * math.log10(10**-1.91 + 10**-2.46)
    assert [band.below for band in bands] == pytest.approx([0.1, added / 2, added, apart, None])


def test_a_scale_gap_has_two_sides() -> None:
    bands = dict(metric_of(plane("scale_gap_bits", "E4M3", 0.0)).bands_by_fmt)["E4M3"]
    assert severities(bands, 0.4, 0.6, 1.1, 5.0) == [0, 1, 2, 3]
    assert [band_at(bands, value).side for value in (-0.9, 0.0, 0.6)] == [0, 0, 1]
    assert severities(bands, -2.0, -7.3, -7.5, -15.0) == [0, 0, 1, 3]
    assert {band.side for band in bands if band.below is not None and band.below < 0} == {-1}


def test_thresholds_move_the_bands_and_keep_them_rising() -> None:
    assert metric_of(plane("underflow", "E4M3", 0.1)).bands[0].below == 0.05
    moved = metric_of(plane("underflow", "E4M3", 0.1), watch_underflow=0.3).bands
    assert [band.below for band in moved] == [0.3, 0.5, None]
    assert severities(metric_of(plane("overflow", "E4M3", 0.1)).bands, 0.0, 1e-9, 0.002, 0.02) == [0, 1, 2, 3]
    assert severities(metric_of(plane("nonfinite", None, 0.0)).bands, 0.0, 1.0) == [0, 4]


@pytest.mark.parametrize("values", [(0.75, 1.5, 3.0), (1e-20, 0.0, 1e20), (2.0,), (0.0,), (np.nan, np.inf)])
def test_amax_has_a_scale_without_good_or_bad(values: tuple[float, ...]) -> None:
    bands = metric_of(plane("amax", None, *values)).bands
    ends = [band.below for band in bands]
    assert ends[-1] is None
    assert len(ends) <= 10
    assert {band.severity for band in bands} == {0}
    powers = [math.log2(end) for end in ends if end is not None]
    assert all(power == int(power) for power in powers)
    assert powers == sorted(powers)
    low, high = ([v for v in values if 0 < v < math.inf] or [1.0])[0], max([v for v in values if v < math.inf] or [1])
    assert len(bands) == 1 or (low < 2 ** powers[0] and high >= 2 ** (powers[-1]))


def test_only_what_is_there_is_offered() -> None:
    found = metrics_of([plane("amax", None, 1.0), plane("underflow", "E4M3", 0.0)], resolve())
    assert [metric.name for metric in found] == ["underflow", "amax"]
    assert all(metric.meaning.endswith(".") for metric in found)
