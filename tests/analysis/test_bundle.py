"""Bundles: what is told, what is not, and that they open as the run did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fp8debug.analysis.bundle import Bundle, collect
from fp8debug.analysis.bundle.manifest import other_names
from fp8debug.analysis.bundle.moment import moment_of
from fp8debug.analysis.bundle.scrub import Scrubber
from fp8debug.analysis.diagnosis import Finding, diagnose
from fp8debug.analysis.run import open_run
from fp8debug.rundir import RankInfo, RunDir

if TYPE_CHECKING:
    from tests.analysis.conftest import NewRun

USER, HOST = "gretelmann", "hexenhaus-07"
PLANTED = (USER, HOST, "lebkuchen", "geheim", "/home", "/scratch", "123.4375", "witch@example.org", "10.1.2.3")
"""Names and values that nobody is to read."""
LIMIT = 25_000_000


@pytest.fixture(scope="module", autouse=True)
def person() -> Iterator[None]:
    """Who makes the bundles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("USER", USER)
        yield


@pytest.fixture(scope="module")
def planted(synthetic_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks; x of `blocks.1.fc1` has outliers that set the scale; something to hide in every free text."""
    command = [f"/home/{USER}/venv/bin/fp8debug", "attach", "--out", "/scratch/lebkuchen/run", "--every=2",
               f"/home/{USER}/train.py", "--data=/scratch/lebkuchen", "--wandb-key", "geheim",
               "--lr", "1e-3"]  # fmt: skip
    names = ("blocks.0.fc1", "blocks.1.fc1", "head")
    run = synthetic_run.SyntheticRun(
        tmp_path_factory.mktemp(USER), layers=[synthetic_run.layer_info(name) for name in names],
        recipes=["current"], tensors=["x", "w"],
        status="failed", status_reason=f"OSError: no such file: '/home/{USER}/my lebkuchen/x.bin'", world_size=2,
        options={"resume": "/scratch/lebkuchen", "layers": ["blocks"]}, name=f"of {USER}",
    )  # fmt: skip
    run.manifest.command = command
    run.manifest.segments = [{"segment": 0, "command": command, "launch": "job 47110815 of lebkuchen", "first_step": 0}]
    run.run_dir.write_manifest(run.manifest)
    generator = np.random.default_rng(0)
    for rank in range(2):
        run.run_dir.write_rank(
            RankInfo(rank, 2, f"{HOST}.example.org", 47110815, layers=run.manifest.layers, n_steps=20)
        )
        for step in range(20):
            for layer in names:
                x = synthetic_run.as_bfloat16(generator.normal(size=(16, 32)))
                if layer == "blocks.1.fc1" and step >= 8:
                    x.reshape(-1)[[0, 100, 300, 511]] = 3e5
                seq = run.add(layer, "x", x, step=step, sampled=step % 2 == 0, rank=rank)
                run.add_detail("values", seq, row=0, values=[123.4375])
                run.add_detail("wsample", seq, fmt="E4M3", stride=1, values=[123.4375], codes=[1.0])
            run.add_row("steps", step=step, rank=rank, loss=2.0 - step / 100, grad_norm=1.0, sampled=step % 2 == 0)
    message = f"ask witch@example.org: /scratch/lebkuchen/a on {HOST.upper()} (10.1.2.3), in ~/lebkuchen of {USER}"
    run.add_row("events", step=3, kind="unsupported", layer="head", message=message)
    run.add_row("evals", step=3, task="oven", score=0.5)
    written: Path = run.write()
    return written


@pytest.fixture(scope="module")
def plain(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Path]:
    """Its bundle, and the folder that holds it."""
    folder = tmp_path_factory.mktemp("bundle") / "run"
    return bundled(planted, folder), folder


def everything_in(folder: Path) -> Iterator[str]:
    """All that can be read in a folder, its names and the cells and metadata of its tables included."""
    for path in sorted(folder.rglob("*")):
        yield path.relative_to(folder).as_posix()
        if path.suffix == ".parquet":
            table = pq.ParquetFile(path).read()
            yield repr(table.schema.metadata) + repr(table.to_pylist())
            yield path.read_bytes().decode("latin-1")
        elif path.is_file():
            yield path.read_text(encoding="utf-8")


def bundled(path: Path, folder: Path, **options: Any) -> Bundle:
    folder.mkdir()
    with open_run(path, threads=1) as run:
        return collect(run, folder, **{"limit_bytes": LIMIT, **options})


def findings_of(path: Path) -> tuple[Finding, ...]:
    with open_run(path, threads=1) as run:
        return diagnose(run)


def test_nothing_that_tells_who_and_where(planted: Path, plain: tuple[Bundle, Path]) -> None:
    before = "\n".join(everything_in(planted))
    assert all(word.lower() in before.lower() for word in PLANTED), "the test looks for what is there"
    _, folder = plain
    told = "\n".join(everything_in(folder)).lower()
    assert [word for word in (*PLANTED, str(planted), "47110815") if word.lower() in told] == []
    manifest = json.loads((folder / "run.json").read_text())
    kept = ["<path>", "attach", "--out", "<path>", "--every=2", "train.py", "--data=<path>", "--wandb-key", "<removed>"]
    assert manifest["command"] == [*kept, "--lr", "1e-3"]
    assert (manifest["status"], manifest["status_reason"]) == ("failed", "OSError: no such file: '<path>'")
    (event,) = pq.ParquetFile(folder / "events/rank=0/part-000000.parquet").read().to_pylist()
    assert event["message"] == "ask <address>: <path> on <host> (<address>), in <path> of <user>"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.txt", "errors", "evals", "events", "findings.json", "histograms", "rank=0.json", "rank=1.json",
        "run.json", "steps", "tensors",
    ]  # fmt: skip


def test_it_opens_as_the_run_did(planted: Path, plain: tuple[Bundle, Path]) -> None:
    bundle, folder = plain
    found = findings_of(planted)
    assert found[0].worst.layer == "blocks.1.fc1"
    opened = findings_of(folder)
    assert [(f.rule, f.severity, f.layers, f.first_step) for f in opened] == [
        (f.rule, f.severity, f.layers, f.first_step) for f in found
    ]
    # What quotes an event is told without the names that are in it.
    assert [f for f in opened if f.layers != ("head",)] == [f for f in found if f.layers != ("head",)]
    assert bundle.lost == () and bundle.cut == ()
    assert bundle.verdict.startswith("blocks.1.fc1 x"), "the layer is named"
    assert bundle.moment.step == 8, "since when"
    told = json.loads((folder / "findings.json").read_text())
    assert (told["verdict"], told["step"], len(told["findings"])) == (bundle.verdict, 8, len(found))
    rows = [row for part in RunDir(folder).parts("histograms") for row in pq.ParquetFile(part).read().to_pylist()]
    with open_run(planted, threads=1) as run:
        chosen = run.sql(
            "select rank, seq from stored.tensors where layer = 'blocks.1.fc1' and sampled and step between 4 and 12"
        ).fetchall()
    assert {(row["rank"], row["seq"]) for row in rows} == set(chosen), "two sampled steps on both sides, that operand"
    assert sum(row["count"] for row in rows) == len(chosen) * 512


def test_layers_by_other_names_and_no_room(planted: Path, tmp_path: Path) -> None:
    """Names are replaced everywhere alike, texts included; what is cut is said."""
    folder = tmp_path / "bundle"
    bundle = bundled(planted, folder, anonymous_layers=True, limit_bytes=1)
    told = "\n".join(everything_in(folder))
    assert "blocks." not in told and "fc1" not in told and "'head'" not in told
    assert bundle.verdict.startswith("layer_002 x")
    findings = json.loads((folder / "findings.json").read_text())["findings"]
    assert findings[0]["places"][0]["layer"] == "layer_002"
    layers = [layer["name"] for layer in json.loads((folder / "run.json").read_text())["layers"]]
    assert layers == ["layer_001", "layer_002", "layer_003"]
    assert other_names(["a[0]", "b", "a[1]"]) == {"a[0]": "layer_001[0]", "b": "layer_002", "a[1]": "layer_001[1]"}
    tables, histograms = bundle.cut
    assert "steps 0 to 18 alone, 5 sampled steps on both sides" in tables and "histograms of 0 tensors" in histograms
    assert bundle.n_histograms == 0
    assert all(words.split()[0] in (folder / "README.txt").read_text() for words in bundle.cut)


@pytest.mark.parametrize("health", [False, True], ids=["loss alone", "health alone"])
def test_loss_alone_names_no_culprit(new_run: NewRun, synthetic_run: ModuleType, tmp_path: Path, health: bool) -> None:
    run = new_run(layers=[synthetic_run.layer_info(f"fc{i}") for i in range(10)], status="closed")
    for step in range(5):
        run.add_row("steps", step=step, loss=float("nan") if step > 2 else 1.0, grad_norm=1.0, sampled=False)
        if health:
            run.add("fc0", "x", np.ones((2, 2), np.float32), step=step, sampled=False)
    folder = tmp_path / "bundle"
    bundle = bundled(run.write(), folder)
    assert bundle.verdict.startswith("insufficient evidence: ")
    assert bundle.verdict.endswith("enable capture for these layers: fc0, fc1, fc2, fc3, fc4, fc5, fc6, fc7 and 2 more")
    assert (bundle.moment.step, bundle.moment.operands, bundle.n_histograms) == (3, (), 0)
    assert bundle.verdict.split(";")[0] in (folder / "README.txt").read_text().replace("\n", " ")


def test_too_few_steps_are_no_evidence(new_run: NewRun, synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = new_run(layers=[synthetic_run.layer_info("fc")])
    run.add("fc", "x", synthetic_run.as_bfloat16(np.random.default_rng(0).normal(size=(16, 32))), step=0)
    with open_run(run.write(), threads=1) as opened:
        moment = moment_of(opened, ())
    assert moment.verdict.startswith("insufficient evidence: nothing was found, in too few sampled steps")
    assert (moment.step, moment.operands) == (0, ())


SCRUBBED = {
    "no file /a/b c": "no file <path> c",
    "at /p/q/train.py:12: bad": "at train.py:12: bad",
    r"at C:\Users\me\x.bin and \\srv\share": "at <path> and <path>",
    "see https://example.org/a?b=c, or git@example.org:a/b.git": "see <address>, or <address>",
    "Hansel wrote hansel_2 on oven.local": "<user> wrote <user>_2 on <host>",
    "'./data/my file' and data/part.bin": "'<path>' and <path>",
    "x/w, fprop/dgrad, 3/4, <path>, a / b, hanseling": "x/w, fprop/dgrad, 3/4, <path>, a / b, hanseling",
    "blocks.1.fc1.weight, blocks.1.fc10, blocks.1.fc1.": "blocks.1.fc1.weight, blocks.1.fc10, layer_7.",
}


@pytest.mark.parametrize(("text", "shown"), SCRUBBED.items())
def test_texts(text: str, shown: str) -> None:
    scrubber = Scrubber(["hansel", "root", "ab"], ["oven.local"], {"blocks.1.fc1": "layer_7", "12": "layer_8"})
    assert scrubber.text(text) == shown


def test_commands() -> None:
    scrubber = Scrubber(["hansel"], [])
    for words, shown in {
        "torchrun --nnodes=2 -m pkg.train --cfg a/b.yaml": "torchrun --nnodes=2 -m pkg.train --cfg <path>",
        "python ~/t.py --api_token=x --user hansel": "python t.py --api_token=<removed> --user <user>",
        r"--layers blocks\.1 --recipe mxfp8": r"--layers blocks\.1 --recipe mxfp8",
    }.items():
        assert " ".join(scrubber.command(words.split())) == shown
    named = Scrubber([], [], {"blocks.1": "layer_001"})
    assert named.command(["--layers", r"blocks\.1"]) == ["--layers", "<pattern>"]
