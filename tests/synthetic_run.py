"""Run directories made of chosen numpy tensors, written with the core's own sums and scales: no torch, no hooks."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fp8debug.blocks import oriented, quantize_blocks, rotate
from fp8debug.formats import FORMATS
from fp8debug.gemms import GEMMS, gemm_of
from fp8debug.metrics import error_sums
from fp8debug.recipes import BlockRecipe, CurrentScaling, Recipe, TensorRecipe, parse_recipe, scale_inv
from fp8debug.rundir import LayerInfo, Manifest, RunDir
from fp8debug.schema import TABLES, Column

_SCALARS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
}


@dataclass(frozen=True)
class ForcedScale:
    """A stateful recipe whose scale the test decides; `scale` None and another status mean that it is unknown."""

    scale: float | None
    recipe: str = "delayed"
    source: str = "framework"
    status: str = "ok"
    n_rolls: int = 100
    fmt: str | None = None
    alternate: bool = False
    amax_used: float | None = None
    history_len: int | None = None
    history_zeros: int | None = None


class SyntheticRun:
    """Collects rows; `write` makes one part of each table that has any. The manifest is written at once."""

    def __init__(self, path: Path, **manifest: Any) -> None:
        self.run_dir = RunDir(path)
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.manifest = Manifest(run_id="synthetic", command=["train.py"], created_at="2026-01-01T00:00:00", **manifest)
        self.run_dir.write_manifest(self.manifest)
        self._rows: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        self._next_seq = 0
        self._next_part: dict[tuple[str, int], int] = defaultdict(int)
        self._keys: dict[int, dict[str, Any]] = {}

    def add(
        self,
        layer: str,
        tensor: str,
        values: npt.NDArray[np.float32],
        *,
        step: int,
        sampled: bool = True,
        with_current: bool = True,
        scales: tuple[ForcedScale, ...] = (),
        fmt: str | None = None,
        segment: int = 0,
        microbatch: int = 0,
        call: int = 0,
        rank: int = 0,
        pass_: str | None = None,
        keep_values: bool = False,
        approx: str | None = None,
        zeros_counted: bool = True,
        placement: str = "local",
        shard: str | None = None,
        replica_of: int | None = None,
        checksum: int | None = None,
        status: str | None = None,
    ) -> int:
        """Add one record with its scales and, when sampled, its histogram and errors; returns its seq.

        `fmt` replaces the hybrid default (dy, dx, dw in E5M2, the rest in E4M3).
        """
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        x = np.asarray(values, dtype=np.float32)
        fmt = fmt or ("E5M2" if tensor.startswith("d") else "E4M3")
        pass_ = pass_ or ("backward" if tensor.startswith("d") else "forward")
        key = {
            "segment": segment, "step": step, "microbatch": microbatch, "call": call, "pass": pass_, "rank": rank,
            "layer": layer, "tensor": tensor, "seq": seq,
        }  # fmt: skip
        self._keys[seq] = key
        health = _health(x) if zeros_counted else {"n": x.size, "amax": _amax(x)}
        self._put("tensors", key, health, shape=list(x.shape), dtype="bfloat16", gemm_dtype="bfloat16",
                  placement=placement, shard=shard, replica_of=rank if replica_of is None else replica_of,
                  row_class="all", sampled=sampled, status=status or ("ok" if x.size else "empty"), approx=approx,
                  checksum=checksum)  # fmt: skip
        for s in scales:
            inverse = None if s.scale is None else scale_inv(np.float32(s.scale))
            self._put("scales", key, recipe=s.recipe, fmt=s.fmt or fmt, alternate=s.alternate, source=s.source,
                      scope="rank", scale=s.scale, scale_inv=inverse, n_rolls=s.n_rolls, status=s.status,
                      amax_used=s.amax_used, history_len=s.history_len, history_zeros=s.history_zeros)  # fmt: skip
        if keep_values:
            for number, row in enumerate(x.reshape(-1, x.shape[-1])):
                self._put("values", key, row=number, values=row)
        if not sampled:
            return seq
        finite = x[np.isfinite(x)]
        bits, counts = np.unique(finite.view(np.uint32), return_counts=True)
        distinct = bits.view(np.float32)
        for value, count in zip(distinct, counts, strict=True):
            self._put("histograms", {"segment": segment, "rank": rank, "seq": seq}, counted="high", value=value,
                      count=count)  # fmt: skip
        in_force = [(s.recipe, s.fmt or fmt, s.alternate, s.source, s.scale) for s in scales if s.scale is not None]
        if with_current:
            scale = float(CurrentScaling().scale(math.inf if np.isinf(x).any() else _amax(x), FORMATS[fmt]))
            in_force.append(("current", fmt, False, "simulated", scale))
        for recipe, name, alternate, source, used in in_force:
            sums = error_sums(distinct, counts, np.float32(used), FORMATS[name])
            self._put("errors", key, asdict(sums), recipe=recipe, fmt=name, alternate=alternate, source=source,
                      scale_scope="record" if recipe == "current" else "rank", scale=used, approx=approx)  # fmt: skip
        return seq

    def add_detail(self, table: str, seq: int, **cells: Any) -> None:
        """Add one row of `blocks`, `channels` or `gemms` to the record `seq`; columns not given are NULL."""
        self._put(table, self._keys[seq], cells)

    def add_linear(
        self,
        layer: str,
        *,
        step: int,
        recipes: tuple[str, ...],
        x: npt.NDArray[np.float32],
        w: npt.NDArray[np.float32],
        dy: npt.NDArray[np.float32],
        sampled: bool = True,
    ) -> None:
        """Add x, w and dy of one pass: records, `blocks` under block recipes, `gemms` under all `recipes`."""
        tensors = {"x": x, "w": w, "dy": dy}
        seqs = {tensor: self.add(layer, tensor, value, step=step, sampled=sampled) for tensor, value in tensors.items()}
        for recipe in map(parse_recipe, recipes) if sampled else ():
            operands = {
                (tensor, orientation): _Operand.under(recipe, tensor, orientation, tensors[tensor])
                for gemm in GEMMS.values()
                for tensor, orientation in gemm
            }
            for (tensor, orientation), operand in operands.items():
                if isinstance(recipe, BlockRecipe):
                    self.add_detail("blocks", seqs[tensor], recipe=recipe.text, fmt=operand.fmt, alternate=False,
                                    orientation=orientation, gemm=gemm_of(tensor, orientation), sample="all",
                                    **operand.block_cells())  # fmt: skip
            for gemm, (first, second) in GEMMS.items():
                self.add_detail("gemms", seqs[first[0]], gemm=gemm, recipe=recipe.text, fmt=operands[first].fmt,
                                other_fmt=operands[second].fmt, alternate=False, accumulation="exact", sample="all",
                                **_gemm_cells(operands[first], operands[second]))  # fmt: skip

    def add_row(self, table: str, **cells: Any) -> None:
        """Add one row as it is; columns not given are NULL, segment and rank are 0."""
        self._put(table, {"segment": 0, "rank": 0}, cells)

    def write(self) -> Path:
        """Write what was collected since the last call as the next part of each table and rank."""
        for (table, rank), rows in self._rows.items():
            path = self.run_dir.part_path(table, rank, self._next_part[table, rank])
            self._next_part[table, rank] += 1
            path.parent.mkdir(parents=True, exist_ok=True)
            columns = TABLES[table].columns
            arrays = [pa.array([row.get(c.name) for row in rows], type=_arrow_type(c)) for c in columns]
            pq.write_table(pa.table(arrays, names=[c.name for c in columns]), path, compression="zstd")
        self._rows.clear()
        return self.path

    def _put(self, table: str, *parts: dict[str, Any], **cells: Any) -> None:
        row: dict[str, Any] = {}
        for part in (*parts, cells):
            row.update(part)
        unknown = row.keys() - set(TABLES[table].column_names)
        assert not unknown, f"{table} has no column {unknown}"
        self._rows[table, row["rank"]].append(row)


@dataclass(frozen=True)
class _Operand:
    """A GEMM operand before and after quantisation, the contracted axis last."""

    fmt: str
    x: npt.NDArray[np.float64]
    q: npt.NDArray[np.float64]
    beyond: npt.NDArray[np.bool_]
    scales: npt.NDArray[np.float32]

    @classmethod
    def under(cls, recipe: Recipe, tensor: str, orientation: str, value: npt.NDArray[np.float32]) -> _Operand:
        x, fmt = oriented(value, orientation), recipe.formats_for(tensor)[0][0]
        if isinstance(recipe, BlockRecipe):
            if recipe.rotates(tensor, orientation):
                x = rotate(x)
            blocks = quantize_blocks(x, recipe, tensor, fmt)
            q, beyond, scales = blocks.values, blocks.beyond, blocks.factors.encode
        else:
            assert isinstance(recipe, TensorRecipe)
            q, beyond = recipe.round(x, _amax(x), 0.0, fmt)
            scales = np.array([recipe.scale(_amax(x), fmt)])
        return cls(fmt.name, x.astype(np.float64), q.astype(np.float64), beyond, scales)

    def block_cells(self) -> dict[str, Any]:
        x, q = self.x, self.q
        return {
            "n_total": x.size, "n": x.size, "n_nonzero": int((x != 0).sum()),
            "n_underflow": int(((x != 0) & (q == 0)).sum()), "n_overflow": int(self.beyond.sum()),
            "sum_x2": (x * x).sum(), "sum_q2": (q * q).sum(), "sum_xq": (x * q).sum(),
            "sum_err2": ((x - q) ** 2).sum(), "n_blocks": self.scales.size, "n_zero_blocks": 0,
            "n_nonfinite_blocks": 0, "n_saturated_blocks": 0, "scale_min": self.scales.min(),
            "scale_median": np.median(self.scales), "scale_max": self.scales.max(),
        }  # fmt: skip


def _gemm_cells(a: _Operand, b: _Operand) -> dict[str, Any]:
    y, q = a.x @ b.x.T, a.q @ b.q.T
    return {
        "n_rows": y.shape[0], "n_columns": y.shape[1], "depth": a.x.shape[1], "n": y.size, "n_nonfinite": 0,
        "sum_y2": (y * y).sum(), "sum_q2": (q * q).sum(), "sum_yq": (y * q).sum(), "sum_err2": ((y - q) ** 2).sum(),
        "sum_x2w2": ((a.x**2) @ (b.x**2).T).sum(),
    }  # fmt: skip


def layer_info(name: str) -> LayerInfo:
    """A matched nn.Linear called `name`."""
    return LayerInfo(name, name, "Linear", "model", 64, 64, True)


def as_bfloat16(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float32 values rounded to BF16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))


def _arrow_type(column: Column) -> pa.DataType:
    if column.type.startswith("list<"):
        return pa.list_(_SCALARS[column.type[5:-1]])
    return _SCALARS[column.type]


def _amax(x: npt.NDArray[np.float32]) -> float:
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max()) if finite.size else 0.0


def _health(x: npt.NDArray[np.float32]) -> dict[str, Any]:
    nonzero = np.abs(x[np.isfinite(x) & (x != 0)])
    return {
        "n": x.size,
        "n_zero": int((x == 0).sum()),
        "n_neg_zero": int(((x == 0) & np.signbit(x)).sum()),
        "n_nan": int(np.isnan(x).sum()),
        "n_posinf": int(np.isposinf(x).sum()),
        "n_neginf": int(np.isneginf(x).sum()),
        "n_rows_nonfinite": 0,
        "amin": float(nonzero.min()) if nonzero.size else None,
        "amax": _amax(x),
    }
