"""A made-up run of many ranks with histograms, for benchmarks: DuckDB makes the rows, so that it takes seconds.

Every rank holds its own piece of the tokens: x and dy of some layers, health and delayed scale at every step; error
sums and a histogram of BF16 values at every `every`-th. One operand of one rank is a thousand times larger now and
then, so that there is something to find and the scale of its group is not that of the other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from fp8debug.analysis.parts import duckdb_type
from fp8debug.rundir import LayerInfo, Manifest, RunDir
from fp8debug.schema import TABLES

TENSORS = ("x", "dy")


@dataclass(frozen=True)
class Size:
    """How large the run is."""

    n_ranks: int = 16
    n_layers: int = 12
    n_steps: int = 100
    every: int = 10
    n_values: int = 4000
    """Distinct values of a histogram."""

    @property
    def n_records(self) -> int:
        """Rows of the table `tensors`."""
        return self.n_ranks * self.n_layers * self.n_steps * len(TENSORS)

    @property
    def n_histograms(self) -> int:
        """Sampled records."""
        return self.n_ranks * self.n_layers * -(-self.n_steps // self.every) * len(TENSORS)


_RECORDS = """
create or replace table records as
with passes as (select
    0 as segment, step, 0 as microbatch, 0 as call, case tensor when 'dy' then 'backward' else 'forward' end as pass,
    $rank as rank, format('layers.{}.mlp', layer) as layer, tensor,
    (step * $n_layers + layer) * 2 + place as seq, step % $every = 0 as sampled,
    case tensor when 'dy' then 'E5M2' else 'E4M3' end as fmt, case tensor when 'dy' then 57344 else 448 end as fmt_max,
    -- A power of two, so that the histogram's largest value is the amax.
    power(2, (hash($rank, step, layer, place) % 3) + case when layer = 1 and $rank = 3 and step % 7 = 0 then 10 else 0
        end)::float as amax
from range($n_steps) as s(step), range($n_layers) as l(layer), (values ('x', 0), ('dy', 1)) as t(tensor, place)
)
select *, max(amax) over (partition by layer, tensor order by step rows between 16 preceding and 1 preceding) as used
from passes
order by seq
"""
_HISTOGRAMS = """
create or replace table bins as
-- $n_values BF16 values of amax downwards, each so often as a bell shape on a logarithmic axis would have it.
select
    segment, rank, seq, 'high' as counted,
    (case when v % 2 = 0 then 1 else -1 end * amax * (1 - (v // 2 % 64) / 128) / power(2, v // 128))::float as value,
    (1 + 4000 * exp(-power((v - 0.7 * $n_values) / (0.2 * $n_values), 2)) * (1 + hash(seq, v) % 64 / 256))::bigint
        as count
from records, range($n_values) as b(v)
where sampled
order by seq
"""
_TABLES = {
    "tensors": """
        select r.*, [2048, 1024]::bigint[] as shape, 'bfloat16' as dtype, 'bfloat16' as gemm_dtype,
            'shard(0)' as placement, format('{}/$n_ranks', rank) as shard, rank as replica_of, 'all' as row_class,
            'ok' as status, coalesce(b.n, 2000000) as n, 0 as n_zero, 0 as n_neg_zero, 0 as n_nan, 0 as n_posinf,
            0 as n_neginf, 0 as n_rows_nonfinite, coalesce(b.amin, 1e-4) as amin
        from records as r
        left join (select seq, sum(count) as n, min(abs(value)) as amin from bins group by seq) as b using (seq)""",
    "scales": """
        select *, 'delayed:amax_history_len=16' as recipe, false as alternate, 'simulated' as source, 'rank' as scope,
            coalesce(fmt_max / used, 1) as scale, coalesce(used / fmt_max, 1) as scale_inv, used as amax_used,
            16 as history_len, 0 as history_zeros, step as n_rolls, step - 1 as set_at_step,
            case when step = 0 then 'warmup' else 'ok' end as status
        from records""",
    "errors": """
        select r.*, recipe, false as alternate, 'simulated' as source, 'rank' as scale_scope,
            case recipe when 'current' then fmt_max / amax else coalesce(fmt_max / used, 1) end as scale,
            b.n, b.n as n_nonzero, 2000 as n_underflow, 0 as n_overflow, b.x2 as sum_x2, b.x2 as sum_q2,
            b.x2 as sum_xq, b.x2 * power(10, case tensor when 'dy' then -2.55 else -3.15 end) as sum_err2,
            b.n * 99 // 100 as n_low, 0.8 * b.x2 as low_sum_x2,
            0.8 * b.x2 * power(10, case tensor when 'dy' then -2.55 else -3.15 end) as low_sum_err2
        from records as r, (values ('current'), ('delayed:amax_history_len=16')) as t(recipe)
        join (select seq, sum(count)::bigint as n, sum(count * value::double * value) as x2 from bins group by seq) as b
            on b.seq = r.seq
        where sampled""",
    "steps": """
        select distinct segment, step, rank, 5 - 3 * step / $n_steps as loss, [loss] as losses,
            'backward' as loss_source, 1.0 as grad_norm, 'gradients' as grad_norm_source, 1e-3 as lr,
            false as skipped, 1 as n_microbatches, sampled, 1.7e9 + step as started_unix_s, 1.0 as duration_s
        from records""",
    "histograms": "from bins",
}  # fmt: skip


def make_run(path: Path, size: Size) -> None:
    """Write the run to `path`: one part a table and rank."""
    run = RunDir(path)
    path.mkdir(parents=True)
    names = [f"layers.{number}.mlp" for number in range(size.n_layers)]
    run.write_manifest(
        Manifest(
            "many",
            ["train.py"],
            "2026-01-01T00:00:00",
            world_size=size.n_ranks,
            recipes=["current", "delayed:amax_history_len=16"],
            tensors=list(TENSORS),
            layers=[LayerInfo(n, n, "Linear", "model", 1024, 1024, True) for n in names],
            status="closed",
        )
    )
    con = duckdb.connect()
    for rank in range(size.n_ranks):
        for statement in (_RECORDS, _HISTOGRAMS):
            con.execute(_bound(statement, size, rank))
        for table, query in _TABLES.items():
            _write(con, run.part_path(table, rank, 0), table, _bound(query, size, rank))


def _bound(query: str, size: Size, rank: int) -> str:
    numbers = {name: getattr(size, name) for name in ("n_layers", "n_steps", "every", "n_values", "n_ranks")}
    for name, number in (numbers | {"rank": rank}).items():
        query = query.replace(f"${name}", str(number))
    return query


def _write(con: duckdb.DuckDBPyConnection, part: Path, table: str, query: str) -> None:
    made = con.sql(query).columns
    columns = [
        f"{column.name if column.name in made else 'null'}::{duckdb_type(column.type)} as {column.name}"
        for column in TABLES[table].columns
    ]
    part.parent.mkdir(parents=True, exist_ok=True)
    con.execute(f"copy (select {', '.join(columns)} from ({query})) to '{part}' (format parquet, compression zstd)")
