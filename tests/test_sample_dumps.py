"""The runs in `sample_dumps/`: what each is documented to show, golden `report` and `sql`, size, nothing private."""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fp8debug.analysis.run import Run, open_run
from fp8debug.cli.main import main
from fp8debug.rundir import RunDir

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLES = REPOSITORY / "sample_dumps"
NAMES = ("gpt-healthy", "smollm2", "gpt-outlier")
DOWN_PROJ = ("model.layers.11.mlp.down_proj", "x")
QUERY_BLOCK = re.compile(r"```sh\nfp8debug sql sample_dumps/([\w-]+) \"\n(.*?)\"\n```", re.DOTALL)


def output_of(*arguments: str) -> str:
    """What the command line prints on stdout, run in the repository's root as a reader would."""
    out, before = io.StringIO(), Path.cwd()
    os.chdir(REPOSITORY)
    try:
        with contextlib.redirect_stdout(out):
            assert main(arguments) == 0
    finally:
        os.chdir(before)
    return out.getvalue()


def documented_queries() -> list[tuple[str, str, str]]:
    """(name of the golden file, run, query) of every query in the samples' README."""
    blocks = QUERY_BLOCK.findall((SAMPLES / "README.md").read_text(encoding="utf-8"))
    return [(f"{number}-{run}.csv", run, query) for number, (run, query) in enumerate(blocks, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_report_is_the_golden_one(name: str, golden: Callable[[str, str], None]) -> None:
    report = output_of("report", f"sample_dumps/{name}")
    golden(f"sample_dumps/{name}.report.txt", report)
    assert max(map(len, report.splitlines())) <= 80
    assert f"fp8debug sql sample_dumps/{name}" in report.partition("\nNEXT\n")[2]


def test_readme_has_queries_of_every_run() -> None:
    assert {run for _, run, _ in documented_queries()} == set(NAMES)


@pytest.mark.parametrize(("file", "run", "query"), documented_queries())
def test_documented_query_gives_the_golden_rows(
    file: str, run: str, query: str, golden: Callable[[str, str], None]
) -> None:
    golden(f"sample_dumps/{file}", output_of("sql", f"sample_dumps/{run}", query, "--format", "csv"))


def listed(run: Run, view: str) -> dict[str, list[tuple[str, str]]]:
    """(layer, tensor) in order of place, by recipe."""
    rows = run.sql(f"select recipe, layer, tensor from {view} order by recipe, place").fetchall()
    return {recipe: [(layer, tensor) for r, layer, tensor in rows if r == recipe] for recipe, _, _ in rows}


def test_healthy_gpt_has_no_candidate_and_nothing_to_watch() -> None:
    with open_run(SAMPLES / "gpt-healthy") as run:
        assert listed(run, "candidates") == listed(run, "watch") == {}


def test_planted_outliers_are_exactly_the_candidates(train_gpt: ModuleType) -> None:
    planted = {(layer, "x") for layer in train_gpt.PLANTED_LAYERS}
    with open_run(SAMPLES / "gpt-outlier") as run:
        candidates = listed(run, "candidates")
    assert {recipe: set(operands) for recipe, operands in candidates.items()} == {
        "current": planted,
        "delayed": planted,
    }


def test_pretrained_model_has_a_watch_list_headed_by_its_outlier_and_no_candidate() -> None:
    with open_run(SAMPLES / "smollm2") as run:
        assert listed(run, "candidates") == {}
        watch = listed(run, "watch")
        assert set(watch) == {"current", "delayed"}
        assert {operands[0] for operands in watch.values()} == {DOWN_PROJ}
        layer, tensor = DOWN_PROJ
        [(amax, underflow, sqnr_db, sqnr_low_db)] = run.sql(
            """
            select amax, underflow, sqnr_db, sqnr_low_db
            from layer_summary
            where layer = $layer and tensor = $tensor and recipe = 'current'
            """,
            layer=layer,
            tensor=tensor,
        ).fetchall()
        reasons = [reason for (reason,) in run.sql("select reason from watch").fetchall()]
        [(micro_batches,)] = run.sql("select sum(n_microbatches) from steps").fetchall()
    assert 2_900 < amax < 3_500
    assert 0.08 < underflow < 0.12
    assert sqnr_db > 36
    assert 24.6 < sqnr_low_db < 31.5
    assert all(reason.endswith("effect on the loss unknown") for reason in reasons)
    assert micro_batches >= 24


@pytest.mark.parametrize("name", NAMES)
def test_kept_histograms_give_the_stored_errors(name: str) -> None:
    with open_run(SAMPLES / name) as run:
        n_histograms, worst = run.sql(
            """
            select count(*), max(abs(w.sqnr_db - e.sqnr_db))
            from whatif_current('E4M3') as w
            join tensor_errors as e using (segment, rank, seq, fmt)
            where e.recipe = 'current'
            """
        ).fetchall()[0]
    assert n_histograms > 100
    assert worst < 1e-8


def test_samples_are_what_the_script_makes() -> None:
    samples = runpy.run_path(str(SAMPLES / "make.py"))["SAMPLES"]
    assert set(samples) == set(NAMES)
    for name, sample in samples.items():
        manifest = RunDir(SAMPLES / name).read_manifest()
        assert (manifest.command, manifest.options["thinned"]) == (sample.command(name), sample.thinning())


def test_all_samples_together_are_small() -> None:
    assert sum(file.stat().st_size for name in NAMES for file in (SAMPLES / name).rglob("*") if file.is_file()) < 8e6


@pytest.mark.parametrize("name", NAMES)
def test_samples_hold_no_path_of_the_machine_they_were_made_on(name: str) -> None:
    run = RunDir(SAMPLES / name)
    texts = {run.storage.read("run.json").decode()}
    for part in run.folder.rglob("*.parquet"):
        table = pq.ParquetFile(part).read()
        texts |= {str(value) for c in table.columns if pa.types.is_string(c.type) for value in c.unique().to_pylist()}
    assert not [text for text in texts if re.search(r"(^|[\s\"'=(])(/|~|[A-Z]:\\)\w", text)]


@pytest.mark.parametrize("name", NAMES)
def test_report_takes_little_more_than_its_imports(name: str) -> None:
    """0.65 s on a machine where these imports take 0.19 s, 0.95 s where remedies are tried for candidates.

    In CPU time, for a busy machine slows both alike.
    """
    limit = (0.95 if name == "gpt-outlier" else 0.65) / 0.19
    ratios: list[float] = []
    while not ratios or (min(ratios) >= limit and len(ratios) < 8):  # what else runs makes any one pair too slow
        imports = cpu_seconds("-c", "import duckdb, pyarrow.parquet, rich.console, rich.table, typer")
        ratios.append(cpu_seconds("-m", "fp8debug", "report", f"sample_dumps/{name}") / imports)
    assert min(ratios) < limit


def cpu_seconds(*arguments: str) -> float:
    """User and system time of one Python process, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_places_of_candidates_and_of_watch_each_begin_at_one() -> None:
    with open_run(SAMPLES / "gpt-outlier", thresholds={"watch_sqnr_loss_db": -0.2}) as run:  # nearly all are watched
        for view in ("candidates", "watch"):
            rows = run.sql(f"select recipe, list(place order by place) from {view} group by recipe").fetchall()
            assert {recipe for recipe, _ in rows} == {"current", "delayed"}
            assert all(places == list(range(1, len(places) + 1)) for _, places in rows)
