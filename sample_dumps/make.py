"""Record the three sample runs, then thin them so that they fit into the repository: the exact way they were made.

    python sample_dumps/make.py gpt-healthy gpt-outlier    # a minute each; needs what fp8debug needs
    python sample_dumps/make.py smollm2                    # four minutes; needs the packages README.md names

Each run is recorded through the command line into fp8debug-runs/<name>, every layer, as anybody would record it. A
recording that is there already is used as it is: delete it to record anew. `thin` then writes sample_dumps/<name>:
all rows of all tables, except that histograms, nine tenths of the bytes, and the details (blocks, channels, gemms) are
kept for the layers and steps given below.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fp8debug.config import DETAILS  # noqa: E402
from fp8debug.hooks.encoding import write_part  # noqa: E402
from fp8debug.hooks.tables import ARROW_SCHEMAS  # noqa: E402
from fp8debug.rundir import RUNS_FOLDER, RunDir  # noqa: E402
from fp8debug.schema import TABLES  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample run: how it is recorded and of which records the histograms are kept."""

    attach: tuple[str, ...]
    script: tuple[str, ...]
    keep_layers: str = ""
    """Regex (re.search) of the layers whose histograms and details are kept; '' is all."""
    keep_steps: tuple[int, ...] | None = None
    """Steps whose histograms and details are kept; None is every sampled one."""

    def command(self, name: str) -> list[str]:
        """The command line that records it."""
        return ["fp8debug", "attach", *self.attach, "--out", f"{RUNS_FOLDER}/{name}", "--name", name, *self.script]

    def thinning(self) -> dict[str, object]:
        """What the manifest of the thinned run says under `options.thinned`."""
        return {
            "by": "sample_dumps/make.py",
            "histograms_of_layers": self.keep_layers or "all",
            "histograms_of_steps": list(self.keep_steps) if self.keep_steps is not None else "all",
        }


_RECIPES = ("current", "delayed", "mxfp8", "block", "nvfp4")
_EVERY_RECIPE = tuple(word for recipe in _RECIPES for word in ("--recipe", recipe))

SAMPLES = {
    "gpt-healthy": Sample(
        attach=("--every", "5", *_EVERY_RECIPE),
        script=("examples/train_gpt.py", "--steps", "200"),
        keep_steps=(0, 100, 195),
    ),
    "smollm2": Sample(
        attach=("--every", "2"),
        script=("examples/finetune_smollm2.py", "--steps", "60", "--accumulate", "1"),
        keep_layers=r"\.(11|28)\.mlp\.down_proj$|^lm_head$",
    ),
    "gpt-outlier": Sample(
        attach=("--every", "5", *_EVERY_RECIPE),
        script=("examples/train_gpt.py", "--steps", "200", "--planted-outlier"),
        keep_steps=(0, 100, 195),
    ),
}


def record(name: str) -> RunDir:
    """Run the training under `fp8debug attach`, unless its recording is there."""
    path = f"{RUNS_FOLDER}/{name}"
    if (ROOT / path).exists():
        print(f"{path} is there: used as it is", file=sys.stderr)
    else:
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # sums in one order: the recording repeats bit for bit
        subprocess.run([sys.executable, "-m", *SAMPLES[name].command(name)], cwd=ROOT, env=one_thread, check=True)
    run = RunDir(ROOT / path)
    if (status := run.read_manifest().status) != "closed":
        raise SystemExit(f"{path}: status is {status!r}, expected 'closed'; delete it and record anew")
    return run


def thin(source: RunDir, target: RunDir, sample: Sample) -> None:
    """Copy a run, one part a table, with the histograms and details that `sample` keeps; `options` says so."""
    shutil.rmtree(target.path, ignore_errors=True)
    manifest = source.read_manifest()
    for rank in range(manifest.world_size):
        tables = {name: _read(source, name, rank) for name in TABLES}
        for name in ("histograms", *DETAILS):
            tables[name] = _kept(tables[name], tables["tensors"], sample)
        for name, table in tables.items():
            if table.num_rows:
                part = target.part_name(name, rank, 0)
                (target.folder / name / f"rank={rank}").mkdir(parents=True)
                write_part(table, name, target.storage, part)
    manifest.options["thinned"] = sample.thinning()
    target.write_manifest(manifest)


def _read(run: RunDir, name: str, rank: int) -> pa.Table:
    parts = sorted(run.table_folder(name, rank).glob("part-*.parquet"))
    schema = ARROW_SCHEMAS[name]
    return pa.concat_tables([schema.empty_table(), *(pq.ParquetFile(part).read().cast(schema) for part in parts)])


def _kept(table: pa.Table, tensors: pa.Table, sample: Sample) -> pa.Table:
    records = tensors.select(["seq", "layer", "step"]).to_pylist()
    layers = re.compile(sample.keep_layers)
    wanted = [
        r["seq"]
        for r in records
        if layers.search(r["layer"]) and (sample.keep_steps is None or r["step"] in sample.keep_steps)
    ]
    return table.filter(pc.is_in(table["seq"], value_set=pa.array(wanted, pa.int64())))


def main() -> None:
    parser = argparse.ArgumentParser(description="Record and thin the sample runs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SAMPLES)}; default: all")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in SAMPLES]:
        parser.error(f"no sample called {unknown[0]!r}: expected some of {', '.join(SAMPLES)}")
    for name in args.names or SAMPLES:
        target = RunDir(ROOT / "sample_dumps" / name)
        thin(record(name), target, SAMPLES[name])
        size = sum(file.stat().st_size for file in target.folder.rglob("*") if file.is_file())
        print(f"sample_dumps/{name}: {size / 1e6:.2f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
