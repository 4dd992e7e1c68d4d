"""What can be looked at over layers and steps, and which values mean what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fp8debug.analysis.page.limits import LIMIT
from fp8debug.analysis.page.records import Band, Metric, Plane
from fp8debug.analysis.page.sources import BY_METRIC
from fp8debug.analysis.thresholds import of_format
from fp8debug.formats import FORMATS

_MOST_OCTAVES = 10
"""Steps of a scale without good or bad."""
_WORDS = {
    "underflow": ("Underflow", "share", "Share of the non-zero values that become zero."),
    "overflow": ("Overflow", "share", "Share of the elements that round beyond the largest value of the format."),
    "sqnr_db": ("SQNR", "dB", "Signal to quantisation noise of the tensor: what the cast leaves of it."),
    "sqnr_low_db": ("SQNR of the small values", "dB", "The same over the smallest 99 % of the non-zero values."),
    "scale_gap_bits": (
        "Scale gap", "bits", "Log2 of the scale in use over that of current scaling: above 0 clips, below wastes range."
    ),
    LIMIT: ("Largest value that fits", "", "Largest magnitude that the scale in use leaves room for: the smallest."),
    "amax": ("Amax", "", "Largest magnitude of the finite elements."),
    "nonfinite": ("NaN and Inf", "elements", "Elements that are NaN or infinite."),
    "gemm_sqnr_db": (
        "GEMM SQNR", "dB",
        "Signal to noise of a GEMM's result: against the result or its products, whichever is higher, since a result "
        "that cancels is no fault of the format.",
    ),
    "gemm_rel_l2": ("GEMM error", "", "Relative L2 error of a GEMM's result; large where the result cancels."),
    "underflow_given": (
        "Underflow as logged", "share", "Share of all elements, zeros included, that become zero, as it was logged."
    ),
    "overflow_given": ("Overflow as logged", "share", "Share of the elements beyond the format, as it was logged."),
    "mse_given": (
        "MSE as logged", "",
        "Mean squared error as it was logged, in the square of the tensor's unit; unknown where the log shows 0.0000.",
    ),
}  # fmt: skip
_LOG2 = (LIMIT, "amax", "nonfinite", "gemm_rel_l2", "mse_given")
_DROWNED = Band(0.1, 4, 0, "noise drowns the signal")  # 0 dB: nothing is left of it
JUDGED_FORMATS = ("E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ")


def metrics_of(planes: Sequence[Plane], thresholds: Mapping[str, float]) -> tuple[Metric, ...]:
    """Those that any of the planes is of, in the order in which they are offered."""
    present = {plane.metric for plane in planes}
    if "scale_gap_bits" in present:
        present.add(LIMIT)  # where columns are merged later, planes of it are added
    return tuple(_metric(name, planes, thresholds) for name in _WORDS if name in present)


def _metric(name: str, planes: Sequence[Plane], thresholds: Mapping[str, float]) -> Metric:
    title, unit, meaning = _WORDS[name]
    own = [plane for plane in planes if plane.metric == name]
    by_fmt = {fmt: bands for fmt in {plane.fmt for plane in own} if fmt and (bands := _of_fmt(name, fmt, thresholds))}
    bands = _bands(name, own, thresholds)
    return Metric(
        name, title, unit, meaning, BY_METRIC[name].worst, name in _LOG2, bands, tuple(sorted(by_fmt.items()))
    )


def _bands(name: str, planes: Sequence[Plane], thresholds: Mapping[str, float]) -> tuple[Band, ...]:
    match name:
        case "underflow" | "underflow_given":
            watch = thresholds["watch_underflow"]
            return _rising(
                Band(watch, 0, 0, "few become zero"), Band(0.25, 1, 0, "many become zero"),
                Band(0.5, 2, 0, "over a quarter becomes zero"), Band(None, 3, 0, "over half becomes zero"),
            )  # fmt: skip
        case "overflow" | "overflow_given":
            watch = thresholds["watch_overflow"]
            return _rising(
                Band(np.finfo(np.float32).tiny.item(), 0, 0, "nothing clipped"), Band(watch, 1, 0, "few clipped"),
                Band(10 * watch, 2, 0, "many clipped"), Band(None, 3, 0, "very many clipped"),
            )  # fmt: skip
        case "scale_gap_bits":
            return _gap_bands("E4M3", thresholds)
        case "nonfinite":
            return (Band(1.0, 0, 0, "all finite"), Band(None, 4, 0, "NaN or Inf"))
        case "sqnr_db" | "sqnr_low_db" | "gemm_sqnr_db":
            return (_DROWNED, Band(None, 0, 0, "no limits for this format"))
    return _octaves(planes)


def _of_fmt(name: str, fmt: str, thresholds: Mapping[str, float]) -> tuple[Band, ...]:
    """Bands of a format with limits of its own; else none."""
    formats = fmt.split(" x ")
    if any(one not in JUDGED_FORMATS for one in formats):
        return ()
    match name:
        case "sqnr_db" | "sqnr_low_db":
            floor, healthy = (of_format(thresholds, key, fmt) for key in ("sqnr_floor", "baseline"))
            return _rising(
                _DROWNED, Band(floor / 2, 3, 0, "over half the precision lost"),
                Band(floor, 2, 0, "below what rounding does"),
                Band(healthy - thresholds["watch_sqnr_loss_db"], 1, 0, "somewhat low"), Band(None, 0, 0, "healthy"),
            )  # fmt: skip
        case "gemm_sqnr_db":
            floors = [of_format(thresholds, "sqnr_floor", one) for one in formats]
            added = -20 * math.log10(sum(10 ** (-0.05 * floor) for floor in floors))
            apart = -10 * math.log10(sum(10 ** (-0.1 * floor) for floor in floors))
            return _rising(
                _DROWNED, Band(added / 2, 3, 0, "over half the precision lost"),
                Band(added, 2, 0, "below what rounding does"), Band(apart, 1, 0, "as low as rounding can"),
                Band(None, 0, 0, "healthy"),
            )  # fmt: skip
        case "scale_gap_bits":
            return _gap_bands(fmt, thresholds)
    return ()


def _gap_bands(fmt: str, thresholds: Mapping[str, float]) -> tuple[Band, ...]:
    """Too small a scale costs nothing until the range of normal numbers is used up; too large a one clips at once."""
    element = FORMATS[fmt]
    octaves = math.log2(element.max / element.min_normal)
    hit, watch = thresholds["gap_bits"], thresholds["watch_gap_bits"]
    return _rising(
        Band(-octaves, 3, -1, "below the normal range"), Band(-octaves / 2, 1, -1, "over half the range unused"),
        Band(-hit, 0, -1, "some range unused"), Band(watch, 0, 0, "fits"), Band(hit, 1, 1, "clips the tail"),
        Band(4 * hit, 2, 1, "clips large values"), Band(None, 3, 1, "clips most values"),
    )  # fmt: skip


def _octaves(planes: Sequence[Plane]) -> tuple[Band, ...]:
    """Equal steps of whole octaves over the values that there are, none of them good or bad."""
    parts = [plane.values[np.isfinite(plane.values) & (plane.values > 0)] for plane in planes]
    found = [part for part in parts if part.size]
    if not found:
        return (Band(None, 0, 0, "any"),)
    low = math.frexp(min(float(part.min()) for part in found))[1] - 1
    high = math.frexp(max(float(part.max()) for part in found))[1]
    width = math.ceil((high - low) / _MOST_OCTAVES)
    ends = [*range(low + width, high, width), None]
    words = [f"2^{end - width} to 2^{end}" for end in ends if end is not None]
    last = low + width * (len(ends) - 1)
    words.append(f"2^{last} and more")
    return tuple(Band(None if end is None else 2.0**end, 0, 0, word) for end, word in zip(ends, words, strict=True))


def _rising(*bands: Band) -> tuple[Band, ...]:
    """Without those that a threshold of the user's leaves no room for."""
    kept: list[Band] = []
    for band in bands:
        end = kept[-1].below if kept else None
        if band.below is None or end is None or band.below > end:
            kept.append(band)
    return tuple(kept)
