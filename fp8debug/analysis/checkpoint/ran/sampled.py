"""A weight of a checkpoint against the same of a run, at the positions that were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.numbers import numbers
from fp8debug.analysis.checkpoint.ran.recorded import WeightSample
from fp8debug.analysis.checkpoint.records import Quantised, Stored
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor, Hypothesis
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.analysis.checkpoint.values import Dequantiser, Float64Array
from fp8debug.formats import FORMATS
from fp8debug.metrics import ErrorSums, cosine, gain, rel_l2, sqnr_db

_PLAIN_SQNR_DB = 54.0
"""Of a rounding to BF16: 20 log10(2^9), less the spread of few values."""
_DOUBT_DB = 3.5
"""A second rounding costs 2.8 dB, a stochastic one 3 dB."""
_BETTER_DB = 3.0
"""By so much an older weight has to fit better before it is named."""
_SAME = 1e-5
"""Relative difference of two factors that are one, stored in different ways."""
_MOST = 0.999
"""Share of codes that have to agree for the bytes to be the same."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A tensor of the checkpoint at the positions of a sample."""

    values: Float64Array
    codes: Float64Array | None
    """Values of its codes with no scale; None: it is not quantised."""
    factors: Float64Array | None
    healthy_sqnr_db: float


def sample_quantised(store: Store, quantised: Quantised, sample: WeightSample) -> Sampled:
    """Pick a quantised tensor at the positions of a sample."""
    codes, factors = Dequantiser(store, quantised).at(sample.positions)
    with np.errstate(all="ignore"):
        values = (codes * factors).astype(np.float64)
    healthy = FORMATS[quantised.fmt].baseline_sqnr_db
    return Sampled(values, codes.astype(np.float64), factors.astype(np.float64), healthy)


def sample_plain(store: Store, stored: Stored, sample: WeightSample) -> Sampled:
    """Pick a tensor in high precision at the positions of a sample."""
    lines, columns = np.divmod(sample.positions, stored.length)
    found = np.empty(sample.positions.shape, np.float64)
    for first, raw in store.bands(stored.name):
        here = slice(*np.searchsorted(lines, (first, first + len(raw))))
        if here.start < here.stop:
            found[here] = numbers(raw, stored.dtype)[lines[here] - first, columns[here]]
    return Sampled(found, None, None, _PLAIN_SQNR_DB)


def judged(name: str, ours: Sampled, samples: Sequence[WeightSample]) -> ComparedTensor:
    """Say whether a tensor is the weight that training ended with.

    Args:
        name: of the tensor.
        ours: the tensor, at the positions of the samples.
        samples: of the same weight, the last one first; all of the same positions.
    """
    last = samples[0]
    sums = _sums(_wanted(last), ours.values)
    found = sqnr_db(sums)
    verdict = _verdict(ours, last, sums)
    return ComparedTensor(
        name=name,
        reference_name=f"w at step {last.step}",
        verdict=verdict,
        n=len(ours.values),
        n_nonfinite=int((~np.isfinite(ours.values)).sum()),
        gain=gain(sums),
        sqnr_db=found,
        rel_l2=rel_l2(sums),
        cosine=cosine(sums),
        healthy_sqnr_db=ours.healthy_sqnr_db,
        block=None,
        block_gain_min=None,
        block_gain_median=None,
        block_gain_max=None,
        worst_block=None,
        worst_block_sqnr_db=None,
        n_blocks=1,
        hypotheses=tuple(_hypotheses(ours, samples, sums)) if verdict == "different" else (),
    )


def _wanted(sample: WeightSample) -> Float64Array:
    """The weight itself where it was seen, else what was made of it."""
    if sample.values is not None:
        return sample.values.astype(np.float64)
    return _read(sample)


def _read(sample: WeightSample) -> Float64Array:
    """What a GEMM read."""
    return sample.codes.astype(np.float64) * (1.0 if sample.scale_inv is None else sample.scale_inv)


def _sums(x: Float64Array, q: Float64Array) -> ErrorSums:
    kept = np.isfinite(x) & np.isfinite(q)
    x, q = x[kept], q[kept]
    return ErrorSums(
        n=len(x),
        n_nonzero=int((x != 0).sum()),
        sum_x2=float(x @ x),
        sum_q2=float(q @ q),
        sum_xq=float(x @ q),
        sum_err2=float((x - q) @ (x - q)),
    )


def _verdict(ours: Sampled, last: WeightSample, sums: ErrorSums) -> str:
    if np.array_equal(ours.values, _wanted(last)):
        return "identical"
    if np.allclose(ours.values, _read(last), rtol=_SAME, atol=0):
        return "recoded"
    found, by = sqnr_db(sums), gain(sums)
    if found is None or by is None:  # nothing but zeros
        return "identical" if sums.sum_err2 == 0 else "different"
    return "faithful" if found >= ours.healthy_sqnr_db - _DOUBT_DB else "different"


def _hypotheses(ours: Sampled, samples: Sequence[WeightSample], sums: ErrorSums) -> list[Hypothesis]:
    found = [*_same_codes(ours, samples[0]), *_stale(ours, samples, sums)]
    return found or _fitted(sums)


def _same_codes(ours: Sampled, last: WeightSample) -> list[Hypothesis]:
    """The bytes are those that training read, and only what they are multiplied with differs."""
    if ours.codes is None or ours.factors is None or not last.scale_inv:
        return []
    if np.mean(ours.codes == last.codes) < _MOST:
        return []
    factor = ours.factors / last.scale_inv
    low, high = float(factor.min()), float(factor.max())
    if high - low <= _SAME * abs(high):
        text = f"its codes are those that training read; its scale is {high:.6g} times that of training"
        return [Hypothesis("scale_changed", text, 1.0, high)]
    text = f"its codes are those that training read; its scales are {low:.4g} to {high:.4g} times that of training"
    return [Hypothesis("scales_changed", text, 1.0, None)]


def _stale(ours: Sampled, samples: Sequence[WeightSample], sums: ErrorSums) -> list[Hypothesis]:
    """An earlier weight fits clearly better, and well."""
    now = sqnr_db(sums)
    found = [(sqnr_db(_sums(_wanted(one), ours.values)), one.step) for one in samples[1:]]
    fits = [(db, step) for db, step in found if db is not None]
    if now is None or not fits:
        return []
    best, step = max(fits)
    if best < now + _BETTER_DB or best < ours.healthy_sqnr_db - _DOUBT_DB:
        return []
    text = (
        f"it is the weight of step {step}, {samples[0].step - step} steps before the last one recorded "
        f"({best:.1f} dB against that one)"
    )
    return [Hypothesis("stale", text, 1 - 10 ** ((now - best) / 10), None)]


def _fitted(sums: ErrorSums) -> list[Hypothesis]:
    """One factor, whatever its cause."""
    by = gain(sums)
    if not by or not sums.sum_err2 or not sums.sum_x2:
        return []
    left = sums.sum_x2 - 2 * sums.sum_xq / by + sums.sum_q2 / by**2
    explains = 1 - max(left, 0.0) / sums.sum_err2
    if explains <= 0:
        return [Hypothesis("other_weights", "no factor makes it the weight of the run", 0.0, None)]
    return [Hypothesis("factor", f"its values are {by:.4g} times those of the run", explains, by)]
