"""The curves of the training, with their spikes and the tensors that moved."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.compare.curve import Curve, Floats
from fp8debug.analysis.compare.sentences import anomaly_text
from fp8debug.analysis.compare.signals import SERIES
from fp8debug.analysis.compare.sources import STEPS, series
from fp8debug.analysis.compare.spikes import Spike, band_of, find_spikes
from fp8debug.analysis.page.columns import bounds, span_of
from fp8debug.analysis.page.moves import moved_before
from fp8debug.analysis.page.records import Moved, PageSpike, Steps, Training
from fp8debug.analysis.run import Run

MOST_SPIKES = 8
MOST_POINTS = 1000


def training(run: Run, recorded: Steps) -> tuple[Training | None, tuple[str, ...]]:
    """What the training said of itself, ranks averaged as in a comparison, and notes on what was left out.

    Args:
        run: an open run.
        recorded: steps with records of tensors, rising.

    Returns:
        None where it said nothing.
    """
    table = run.sql(STEPS).fetchnumpy()
    steps = np.ma.getdata(table["step"]).astype(np.int64)
    loss, grad_norm, lr = (series(table[name]) for name in ("loss", "grad_norm", "lr"))
    if not steps.size or (loss is None and grad_norm is None and lr is None):
        return None, ()
    said = ~(np.ma.getmaskarray(table["grad_norm"]) | np.ma.getdata(table["skipped"]))
    found = _spikes(run, steps, loss, np.ma.getdata(table["n_losses"]) > 0, grad_norm, said)
    kept = _worst(found)
    places = _places(steps, [values for values in (loss, grad_norm) if values is not None])
    shown = Training(
        steps=steps[places],
        loss=_finite(loss, places),
        grad_norm=_finite(grad_norm, places),
        lr=_finite(lr, places),
        spikes=tuple(_page_spike(spike, moved_before(run, spike.first_step, recorded)) for spike in kept),
        sql=STEPS.strip(),
    )
    return shown, tuple(_notes(len(found) - len(kept), steps.size, places.size))


def _spikes(
    run: Run, steps: Steps, loss: Floats | None, has_loss: npt.NDArray[np.bool_], grad_norm: Floats | None,
    has_norm: npt.NDArray[np.bool_],
) -> list[Spike]:  # fmt: skip
    curves = {}
    if loss is not None:
        curves["loss"] = Curve(str(run.path), steps[has_loss], loss[has_loss])
    if grad_norm is not None:
        curves["grad_norm"] = Curve(str(run.path), steps, grad_norm, grad_norm, has_norm)
    bands = {name: band_of(curves[name], name) for name in SERIES if name in curves}
    return [spike for name, band in bands.items() if band is not None for spike in find_spikes(band, name, None)]


def curve_training(curve: Curve, found: Sequence[Spike]) -> tuple[Training, tuple[str, ...]]:
    """The same of a curve without tensors, with the spikes that a comparison found in it."""
    kept = _worst(found)
    places = _places(curve.steps, [values for values in (curve.loss, curve.grad_norm) if values is not None])
    shown = Training(
        steps=curve.steps[places],
        loss=_finite(curve.loss, places),
        grad_norm=_finite(curve.grad_norm, places),
        lr=_finite(curve.lr, places),
        spikes=tuple(_page_spike(spike, ()) for spike in kept),
        sql="",
    )
    return shown, tuple(_notes(len(found) - len(kept), curve.steps.size, places.size))


def _worst(found: Sequence[Spike]) -> list[Spike]:
    return sorted(sorted(found, key=lambda spike: -spike.excess)[:MOST_SPIKES], key=lambda spike: spike.first_step)


def _page_spike(spike: Spike, moved: tuple[Moved, ...]) -> PageSpike:
    text = anomaly_text(spike)
    back = (
        "not back in its band by the last step"
        if spike.recovered_step is None
        else f"back in its band at step {spike.recovered_step}"
    )
    return PageSpike(
        series=spike.series,
        first_step=spike.first_step,
        last_step=spike.first_step + spike.n_steps - 1,
        sentence=f"{text[:1].upper()}{text[1:]}; {back}.",
        moved=moved,
    )


def _places(steps: Steps, curves: Sequence[Floats]) -> npt.NDArray[np.intp]:
    """All steps, or of each group of neighbours those with the highest values, what is not finite before all."""
    if steps.size <= MOST_POINTS or not curves:
        return np.arange(steps.size)
    span = span_of(steps, MOST_POINTS)
    starts = np.searchsorted(steps, bounds(steps, span)[0])
    kept = {
        start + int(np.argmax(np.where(np.isfinite(part), part, np.inf)))
        for values in curves
        for start, part in zip(starts.tolist(), np.split(values, starts[1:]), strict=True)
    }
    return np.array(sorted(kept), dtype=np.intp)


def _finite(values: Floats | None, places: npt.NDArray[np.intp]) -> Floats | None:
    return None if values is None else np.where(np.isfinite(values[places]), values[places], math.nan)


def _notes(n_spikes_left: int, n_steps: int, n_shown: int) -> list[str]:
    notes = []
    if n_spikes_left:
        notes.append(f"{n_spikes_left:,} more spikes of the loss or the gradient norm, all lower, are left out.")
    if n_shown < n_steps:
        notes.append(
            f"Of {n_steps:,} steps of the loss and the gradient norm {n_shown:,} are drawn: the highest of neighbours."
        )
    return notes
