"""Run directories of many layers and steps, made of random walks and written column by column: seconds, not minutes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fp8debug.formats import FORMATS as ELEMENTS
from fp8debug.metrics import error_sums
from fp8debug.rundir import LayerInfo, Manifest, RunDir
from fp8debug.schema import TABLES, Column

Numbers = npt.NDArray[Any]

TENSORS = ("x", "w", "dy")
FORMATS = {"x": (("E4M3", False),), "w": (("E4M3", False),), "dy": (("E5M2", False), ("E4M3", True))}
"""Of each tensor, and whether it is recorded beside the recipe's own."""
LARGEST = {"E4M3": 448.0, "E5M2": 57344.0}
HEALTHY_DB = {"E4M3": 31.5, "E5M2": 25.6}
LINEARS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
N = 1 << 20
"""Elements of each tensor."""
OUTLIERS = 250
"""Elements of a tensor beyond its bell, where its values are counted."""
STEPS_A_PART = 250


@dataclass(frozen=True)
class WideRun:
    """What was written, and what was planted in it."""

    path: Path
    layers: tuple[str, ...]
    n_steps: int
    sampled_every: int
    bad_layer: str
    """The amax of its x is 16 times as large from `bad_step` on, under a scale that then clips by 2.5 bits."""
    bad_step: int
    spike_step: int
    """The loss jumps here, three steps after that."""


def write_wide_run(path: Path, n_layers: int = 200, n_steps: int = 1000, sampled_every: int = 10) -> WideRun:
    """Write a run with x, w and dy of every layer at every step, delayed and current recipes, and a training's curves.

    Error sums are of sampled steps, histograms of the bad layer's tensors at the last of those.
    """
    planted = WideRun(
        path=path,
        layers=tuple(f"blocks.{number // 4}.{LINEARS[number % 4]}" for number in range(n_layers)),
        n_steps=n_steps,
        sampled_every=sampled_every,
        bad_layer=f"blocks.{n_layers // 8}.{LINEARS[1]}",
        bad_step=n_steps // 2,
        spike_step=n_steps // 2 + 3,
    )
    _write_manifest(planted)
    walks = _walks(planted)
    for part, first in enumerate(range(0, n_steps, STEPS_A_PART)):
        steps = np.arange(first, min(n_steps, first + STEPS_A_PART))
        records = _records(planted, steps)
        _write(path, "tensors", part, _tensors(planted, records, walks))
        _write(path, "scales", part, _scales(planted, records, walks))
        sampled = {name: values[records["step"] % sampled_every == 0] for name, values in records.items()}
        _write(path, "errors", part, _errors(planted, sampled, walks))
    _write(path, "steps", 0, _steps(planted))
    _write(path, "histograms", 0, _histograms(planted, walks))
    return planted


def _write_manifest(planted: WideRun) -> None:
    planted.path.mkdir(parents=True, exist_ok=True)
    layers = [LayerInfo(name, name, "Linear", "model", 1024, 1024, True) for name in planted.layers]
    RunDir(planted.path).write_manifest(
        Manifest(
            run_id="wide", command=["train.py"], created_at="2026-01-01T00:00:00", recipes=["delayed", "current"],
            tensors=list(TENSORS), layers=layers, status="closed",
        )
    )  # fmt: skip


def _walks(planted: WideRun) -> dict[str, Numbers]:
    """Exponents of the amax and of the delayed scale's error, bits; shape (steps, layers, tensors)."""
    rng = np.random.default_rng(7)
    shape = (planted.n_steps, len(planted.layers), len(TENSORS))
    start = np.array([3.0, -1.0, -12.0]) + rng.normal(0, 1, shape[1:])
    amax = start + np.cumsum(rng.normal(0, 0.02, shape), axis=0) + rng.normal(0, 0.1, shape)
    bad = planted.layers.index(planted.bad_layer)
    amax[planted.bad_step :, bad, 0] += 4.0
    # The amax of the step before sets the scale, so what moved since then is the gap.
    gap = np.diff(amax, axis=0, prepend=amax[:1])
    gap[planted.bad_step :, bad, 0] = 2.5
    lost = np.abs(rng.normal(0, 0.4, shape)) + 6.0 * np.maximum(gap, 0)
    return {"amax": 2.0**amax, "gap": gap, "lost": lost, "underflow": rng.beta(1, 60, shape)}


def _records(planted: WideRun, steps: Numbers) -> dict[str, Numbers]:
    """Keys of all records of `steps`, step by step as they were observed."""
    step, layer, tensor = (
        grid.ravel() for grid in np.meshgrid(steps, np.arange(len(planted.layers)), np.arange(3), indexing="ij")
    )
    seq = (step * len(planted.layers) + layer) * 3 + tensor
    return {"step": step, "layer": layer, "tensor": tensor, "seq": seq}


def _key(planted: WideRun, records: dict[str, Numbers]) -> dict[str, Any]:
    zeros = np.zeros(records["step"].size, dtype=np.int32)
    words = {"layer": planted.layers, "tensor": TENSORS, "pass": ("forward", "backward")}
    codes = {"layer": records["layer"], "tensor": records["tensor"], "pass": (records["tensor"] == 2).astype(int)}
    named = {name: _words(words[name], codes[name]) for name in words}
    return {
        "segment": zeros, "microbatch": zeros, "call": zeros, "rank": zeros, "step": records["step"],
        "seq": records["seq"], **named,
    }  # fmt: skip


def _words(words: tuple[str, ...], codes: Numbers) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), list(words)).cast(pa.string())


def _of(walk: Numbers, records: dict[str, Numbers]) -> Numbers:
    return walk[records["step"], records["layer"], records["tensor"]]


def _tensors(planted: WideRun, records: dict[str, Numbers], walks: dict[str, Numbers]) -> dict[str, Any]:
    size = records["step"].size
    amax = _of(walks["amax"], records)
    zero = np.zeros(size, dtype=np.int64)
    return _key(planted, records) | {
        "dtype": _words(("bfloat16",), zero), "gemm_dtype": _words(("bfloat16",), zero),
        "placement": _words(("local",), zero), "row_class": _words(("all",), zero), "status": _words(("ok",), zero),
        "sampled": records["step"] % planted.sampled_every == 0, "replica_of": zero, "n": np.full(size, N),
        "n_zero": zero, "n_neg_zero": zero, "n_nan": zero, "n_posinf": zero, "n_neginf": zero, "n_rows_nonfinite": zero,
        "amin": amax * 2.0**-30, "amax": amax,
    }  # fmt: skip


def _scales(planted: WideRun, records: dict[str, Numbers], walks: dict[str, Numbers]) -> dict[str, Any]:
    return _under(planted, records, walks, ("delayed",)) | {"scope": "rank", "status": "ok"}


def _errors(planted: WideRun, records: dict[str, Numbers], walks: dict[str, Numbers]) -> dict[str, Any]:
    cells = _under(planted, records, walks, ("delayed", "current"))
    amax, lost, is_current = cells.pop("amax"), cells.pop("lost"), cells.pop("is_current")
    sqnr_db = cells.pop("healthy_db") - np.where(is_current, 0.0, lost)
    x2 = N * (amax / 5.0) ** 2
    err2 = x2 * 10.0 ** (-sqnr_db / 10)
    nonzero = np.full(amax.size, N)
    sums = {
        "n": nonzero, "n_nonzero": nonzero,
        "n_underflow": np.rint(cells.pop("underflow") * N).astype(np.int64),
        "n_overflow": np.where(is_current, 0, np.rint(np.maximum(cells.pop("gap"), 0) * 100)).astype(np.int64),
        "sum_x2": x2, "sum_q2": x2.copy(), "sum_xq": x2 - err2 / 2, "sum_err2": err2, "n_low": (nonzero * 99) // 100,
        "low_sum_x2": x2 * 0.9, "low_sum_err2": err2 * 0.9 * 1.1,
    }  # fmt: skip
    step, layer = _counted(planted)
    for row in np.flatnonzero(cells["seq"] // 3 == step * len(planted.layers) + layer):  # whose values tell them
        values, counts = _shape(amax[row])
        for name, total in asdict(
            error_sums(values, counts, cells["scale"][row], ELEMENTS[cells["fmt"][row].as_py()])
        ).items():
            sums[name][row] = total
    return cells | sums | {"scale_scope": "rank"}


def _under(
    planted: WideRun, records: dict[str, Numbers], walks: dict[str, Numbers], recipes: tuple[str, ...]
) -> dict[str, Any]:
    """One row a record, recipe and format, with what error sums are made of beside the stored columns."""
    kinds = [
        (recipe, code, fmt, is_alternate)
        for recipe in range(len(recipes))
        for code, tensor in enumerate(TENSORS)
        for fmt, is_alternate in FORMATS[tensor]
    ]
    rows = [np.flatnonzero(records["tensor"] == code) for _, code, _, _ in kinds]
    place = np.concatenate(rows)
    order = np.argsort(place, kind="stable")
    place, kind = place[order], np.repeat(np.arange(len(kinds)), [found.size for found in rows])[order]
    recipe = np.array([number for number, *_ in kinds])[kind]
    fmt = np.array([list(LARGEST).index(name) for _, _, name, _ in kinds])[kind]
    chosen = {name: values[place] for name, values in records.items()}
    is_current = np.array([name == "current" for name in recipes])[recipe]
    amax, gap = _of(walks["amax"], chosen), np.where(is_current, 0.0, _of(walks["gap"], chosen))
    scale = (np.array(list(LARGEST.values()))[fmt] / amax * 2.0**gap).astype(np.float32)
    stored = {
        "recipe": _words(recipes, recipe), "fmt": _words(tuple(LARGEST), fmt),
        "alternate": np.array([is_alternate for *_, is_alternate in kinds])[kind], "source": "simulated",
        "scale": scale,
    }  # fmt: skip
    if recipes == ("delayed",):
        return _key(planted, chosen) | stored | {"scale_inv": 1 / scale, "n_rolls": chosen["step"] + 100}
    healthy = np.array([HEALTHY_DB[name] for name in LARGEST])[fmt]
    return _key(planted, chosen) | stored | {
        "amax": amax, "gap": gap, "is_current": is_current, "healthy_db": healthy,
        "lost": _of(walks["lost"], chosen), "underflow": _of(walks["underflow"], chosen),
    }  # fmt: skip


def _steps(planted: WideRun) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    steps = np.arange(planted.n_steps)
    loss = 2.0 + 6.0 * np.exp(-steps / 300) + rng.normal(0, 0.02, steps.size)
    loss[planted.spike_step : planted.spike_step + 2] += 3.0
    return {
        "segment": np.zeros(steps.size, dtype=np.int32), "step": steps, "rank": np.zeros(steps.size, dtype=np.int32),
        "loss": loss, "loss_source": "backward", "grad_norm": np.exp(rng.normal(0, 0.1, steps.size)),
        "grad_norm_source": "log", "lr": np.full(steps.size, 1e-3), "skipped": np.zeros(steps.size, dtype=bool),
        "sampled": steps % planted.sampled_every == 0,
    }  # fmt: skip


def _histograms(planted: WideRun, walks: dict[str, Numbers]) -> dict[str, Any]:
    """Those of the bad layer's tensors at the last sampled step."""
    step, layer = _counted(planted)
    seqs = (step * len(planted.layers) + layer) * 3 + np.arange(3)
    shapes = [_shape(amax) for amax in walks["amax"][step, layer]]
    values, counts = (np.concatenate(parts) for parts in zip(*shapes, strict=True))
    return {
        "segment": np.zeros(values.size, dtype=np.int32), "rank": np.zeros(values.size, dtype=np.int32),
        "seq": np.repeat(seqs, [own.size for own, _ in shapes]), "counted": "high", "value": values, "count": counts,
    }  # fmt: skip


def _counted(planted: WideRun) -> tuple[int, int]:
    """Step, and place of the layer, whose values are counted."""
    return (planted.n_steps - 1) // planted.sampled_every * planted.sampled_every, planted.layers.index(
        planted.bad_layer
    )


def _shape(amax: float) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """`N` elements, none zero: a bell of which a scale that is off by 2.5 bits holds all, and `OUTLIERS` up to amax."""
    bell = np.linspace(-5, 5, 2000)
    weight = np.exp(-(bell**2) / 2)
    n_of = np.rint(weight / weight.sum() * (N - OUTLIERS)).astype(np.int64)
    values = np.concatenate([bell / 30, np.linspace(0.2, 1, OUTLIERS), [2.0**-30]]) * amax
    counts = np.concatenate([n_of, np.ones(OUTLIERS + 1, dtype=np.int64)])
    counts[1000] += N - counts.sum()
    values, counts = values[counts > 0], counts[counts > 0]
    order = np.argsort(values)
    return values[order].astype(np.float32), counts[order]


def _write(path: Path, table: str, part: int, cells: dict[str, Any]) -> None:
    file = RunDir(path).part_path(table, 0, part)
    file.parent.mkdir(parents=True, exist_ok=True)
    n_rows = max(len(values) for values in cells.values() if not isinstance(values, str))
    columns = {column.name: _column(column, cells.get(column.name), n_rows) for column in TABLES[table].columns}
    assert not cells.keys() - columns.keys(), f"{table} has no column {cells.keys() - columns.keys()}"
    pq.write_table(pa.table(columns), file, compression="zstd", compression_level=1)


def _column(column: Column, values: Any, n_rows: int) -> pa.Array:
    kind = _arrow_type(column.type)
    if values is None:
        return pa.nulls(n_rows, kind)
    if isinstance(values, str):
        return pa.repeat(pa.scalar(values), n_rows)
    return values if isinstance(values, pa.Array) else pa.array(values).cast(kind, safe=False)


def _arrow_type(word: str) -> pa.DataType:
    if word.startswith("list<"):
        return pa.list_(_arrow_type(word[5:-1]))
    names = {"float32": pa.float32(), "float64": pa.float64(), "bool": pa.bool_()}
    return names.get(word) or getattr(pa, word)()
