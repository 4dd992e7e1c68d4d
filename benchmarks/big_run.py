"""How long a report takes over a run of a million tensor records, and how much memory: made up here, then measured.

    python benchmarks/big_run.py [--records 1000000] [--source simulated | framework] [--keep FOLDER]

The run is synthetic: 96 layers with x, w and dy, every step's health and delayed scale, errors at every 50th step, and
one operand that clips every seventeenth step, which a history of sixteen has just forgotten. DuckDB makes the rows, so
that the benchmark itself stays short. Measured is `fp8debug report --json`, remedies included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from fp8debug.analysis.parts import duckdb_type
from fp8debug.rundir import LayerInfo, Manifest, RunDir
from fp8debug.schema import SCHEMA_VERSION, TABLES

N_LAYERS, EVERY, PART_STEPS = 96, 50, 250
TENSORS = ("x", "w", "dy")

# Amaxes wander by a few per cent; the scale is that of the step before, as a short history has it.
_RECORDS = """
create table records as
with passes as (select
    0 as segment, step, 0 as microbatch, 0 as call, case tensor when 'dy' then 'backward' else 'forward' end as pass,
    0 as rank, format('layers.{}.mlp', layer) as layer, tensor, (step * $n_layers + layer) * 3 + place as seq,
    step % $every = 0 as sampled, case tensor when 'dy' then 'E5M2' else 'E4M3' end as fmt,
    case tensor when 'dy' then 57344 else 448 end as fmt_max,
    (3 + 0.2 * (hash(step, layer, place) % 1000003) / 1000003
        + case when layer = 41 and tensor = 'x' and step % 17 = 0 then 20 else 0 end)::float
        as amax
from range($n_steps) as s(step), range($n_layers) as l(layer),
    (values ('x', 0), ('w', 1), ('dy', 2)) as t(tensor, place)
)
select
    *, max(amax) over (partition by layer, tensor order by step rows between 16 preceding and 1 preceding) as used
from passes
order by seq
"""

_TABLES = {
    "tensors": """
        select *, [2048, 1024]::bigint[] as shape, 'bfloat16' as dtype, 'bfloat16' as gemm_dtype, 'local' as placement,
            0 as replica_of, 'all' as row_class, 'ok' as status, 2097152 as n, 0 as n_zero, 0 as n_neg_zero,
            0 as n_nan, 0 as n_posinf, 0 as n_neginf, 0 as n_rows_nonfinite, 1e-6 as amin
        from records""",
    "scales": """
        select *, 'delayed:amax_history_len=16' as recipe, false as alternate, '$source' as source, 'rank' as scope,
            coalesce(fmt_max / used, 1) as scale, coalesce(used / fmt_max, 1) as scale_inv, used as amax_used,
            16 as history_len, 0 as history_zeros, step as n_rolls, step - 1 as set_at_step,
            case when step = 0 then 'warmup' else 'ok' end as status
        from records""",
    "errors": """
        select *, case recipe when 'current' then 'simulated' else '$source' end as source,
            'rank' as scale_scope, false as alternate,
            case recipe when 'current' then fmt_max / amax else coalesce(fmt_max / used, 1) end as scale,
            2097152 as n, 2097152 as n_nonzero, 2000 as n_underflow,
            case when amax > 10 then 4000 else 0 end as n_overflow,
            2e6 as sum_x2, 2e6 as sum_q2, 2e6 as sum_xq,
            2e6 * pow(10, case when amax > 10 then -0.9 when tensor = 'dy' then -2.55 else -3.15 end) as sum_err2,
            2076180 as n_low, 1.6e6 as low_sum_x2,
            1.6e6 * pow(10, case when tensor = 'dy' then -2.55 else -3.15 end) as low_sum_err2
        from records, (values ('current'), ('delayed:amax_history_len=16')) as r(recipe)
        where sampled""",
    "steps": """
        select distinct segment, step, rank, 5 - 3 * step / $n_steps as loss, [loss] as losses,
            'backward' as loss_source,
            1.0 as grad_norm, 'gradients' as grad_norm_source, 1e-3 as lr, false as skipped, 1 as n_microbatches,
            sampled, 1.7e9 + step as started_unix_s, 1.0 as duration_s
        from records""",
}  # fmt: skip


def make_run(path: Path, n_records: int, source: str) -> None:
    """Write a run of about `n_records` tensor records to `path`; delayed scales are the framework's or simulated."""
    n_steps = max(1, n_records // (N_LAYERS * len(TENSORS)))
    run = RunDir(path)
    path.mkdir(parents=True)
    names = [f"layers.{number}.mlp" for number in range(N_LAYERS)]
    run.write_manifest(
        Manifest(
            "big",
            ["train.py"],
            "2026-01-01T00:00:00",
            recipes=["current", "delayed:amax_history_len=16"],
            tensors=list(TENSORS),
            layers=[LayerInfo(n, n, "Linear", "model", 1024, 1024, True) for n in names],
            status="closed",
        )
    )
    con = duckdb.connect()
    con.execute(_RECORDS, {"n_steps": n_steps, "n_layers": N_LAYERS, "every": EVERY})
    for table, query in _TABLES.items():
        made = con.sql(_bound(query, n_steps, source)).columns
        columns = [
            f"{column.name if column.name in made else 'null'}::{duckdb_type(column.type)} as {column.name}"
            for column in TABLES[table].columns
        ]
        con.execute(f"create table made as select {', '.join(columns)} from ({_bound(query, n_steps, source)})")
        for number, first in enumerate(range(0, n_steps, PART_STEPS)):
            part = run.part_path(table, 0, number)
            part.parent.mkdir(parents=True, exist_ok=True)
            con.execute(
                f"copy (from made where step >= {first} and step < {first + PART_STEPS}) to '{part}' (format parquet, "
                f"compression zstd, kv_metadata {{'fp8debug.table': '{table}', "
                f"'fp8debug.schema_version': '{SCHEMA_VERSION}'}})"
            )
        con.execute("drop table made")


def _bound(query: str, n_steps: int, source: str) -> str:
    return query.replace("$n_steps", str(n_steps)).replace("$source", source)


def measure(path: Path) -> dict[str, float]:
    """Wall seconds, CPU seconds and peak memory (MB) of `fp8debug report --json` in a process of its own."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "fp8debug", "report", str(path), "--json"], capture_output=True, text=True, check=True
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    findings = json.loads(done.stdout).get("findings", [])
    return {
        "wall_s": wall,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mb": after.ru_maxrss / 1024,
        "n_findings": len(findings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--source", choices=("simulated", "framework"), default="simulated", help="of delayed scales")
    parser.add_argument("--keep", type=Path, help="make the run here and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = options.keep or Path(temporary) / "run"
        if not path.exists():
            make_run(path, options.records, options.source)
        figures = measure(path)
    print(f"{options.records:,} records:", ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
