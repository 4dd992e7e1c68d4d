"""What GEMMs of a run read of their weights, and the weights, as two small checkpoints: audited as any other pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.numbers import FORMAT_OF_DTYPE
from fp8debug.analysis.checkpoint.ran.recorded import WeightSample, sampled_layers, weight_samples
from fp8debug.analysis.checkpoint.records import Assumption, Convention, Quantised, Scale
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.analysis.checkpoint.store.memory import MemoryStore
from fp8debug.analysis.run import open_run
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import FORMATS, Uint8Array, decode, encode

_DTYPES = {fmt: dtype for dtype, fmt in FORMAT_OF_DTYPE.items()}

Arrays = dict[str, tuple[str, npt.NDArray[Any]]]


def pair_of_run(path: str | Path) -> tuple[Store, Convention, Store]:
    """The codes and scales that the GEMMs of a run read last, how they are read, and the weights that they are of.

    Raises:
        Fp8DebugError: the run has none.
    """
    with open_run(path) as run:
        samples = {layer: weight_samples(run, layer)[0] for layer in sampled_layers(run)}
    if not samples:
        raise Fp8DebugError(
            f"{path} is a run in which no GEMM was seen to read a weight in low precision, so there is no pair of "
            "codes and weights in it; give a checkpoint, and the run with --run"
        )
    codes, quantised = _codes(samples)
    weights: Arrays = {
        f"{layer}.weight": ("F32", one.values) for layer, one in samples.items() if one.values is not None
    }
    return MemoryStore(Path(path), codes), _convention(samples, quantised), MemoryStore(Path(path), weights)


def _codes(samples: Mapping[str, WeightSample]) -> tuple[Arrays, list[Quantised]]:
    arrays: Arrays = {}
    quantised = []
    for layer, sample in samples.items():
        name, dtype = f"{layer}.weight", _DTYPES.get(sample.fmt)
        codes = encode(sample.codes, FORMATS[sample.fmt])
        if dtype is None or sample.scale_inv is None or _has_factors(sample, codes):
            arrays[name] = ("F32", sample.codes)
            continue
        arrays |= {name: (dtype, codes), f"{name}_scale_inv": ("F32", np.array(sample.scale_inv, np.float32))}
        scale = Scale(f"{name}_scale_inv", "weight", "F32", (), False, "tensor", module=layer)
        quantised.append(Quantised(name, layer, sample.fmt, codes.shape, (scale,)))
    return arrays, quantised


def _has_factors(sample: WeightSample, codes: Uint8Array) -> bool:
    """Whether its codes are recorded after the scale of their block: then they are no values of the format."""
    return not np.array_equal(decode(codes, FORMATS[sample.fmt]), sample.codes, equal_nan=True)


def _convention(samples: Mapping[str, WeightSample], quantised: list[Quantised]) -> Convention:
    known = {one.name for one in quantised}
    plain = tuple(f"{layer}.weight" for layer in samples if f"{layer}.weight" not in known)
    steps = sorted({one.step for one in samples.values()})
    at = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    taken = Assumption(
        "run", f"each weight stands for itself at up to 4,096 fixed positions, as its GEMM read it at {at}"
    )
    blocked = Assumption(
        "run", f"{len(plain):,} weights have one scale a block, of which the run kept only the products"
    )
    return Convention(
        dialect="run",
        title="what the GEMMs of a run read",
        why="it is a run directory",
        quantised=tuple(quantised),
        plain=plain,
        assumptions=(taken, blocked) if plain else (taken,),
    )
