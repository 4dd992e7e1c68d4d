"""`fp8debug report`: what a person reads, what a program gets, and every exit code."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fp8debug import __version__
from fp8debug.analysis import Run, remedies
from fp8debug.cli.main import main
from fp8debug.rundir import RunDir

Golden = Callable[[str, str], None]


class Report:
    """`fp8debug report` in this process, from inside one folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it prints on stdout; `err` has the rest. Its exit code must be `code`."""
        self._capsys.readouterr()
        got = main(["report", *arguments])
        out, self.err = self._capsys.readouterr()
        assert got == code, self.err
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The document of `--json`, read by a parser that knows no NaN."""
        return json.loads(self(*arguments, "--json", code=code), parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_operands_that_sampling_always_passes_by(synthetic_run: ModuleType, report: Report, tmp_path: Path) -> None:
    """As the gradients of a generator when steps alternate with a discriminator's and every second one is sampled."""
    run = synthetic_run.SyntheticRun(tmp_path / "gan")
    for step in range(4):
        run.add("discriminator", "dy", np.ones((8, 64), np.float32), step=step, sampled=step % 2 == 0)
    run.add("generator", "dy", np.ones((8, 64), np.float32), step=1, sampled=False)
    text = " ".join(report(str(run.write())).split())
    assert "2 were recorded. 1 operand was seen in no sampled step, so their errors are unknown:" in text


@pytest.fixture(autouse=True)
def remedies_once(monkeypatch: pytest.MonkeyPatch, found_remedies: dict[Any, Any]) -> None:
    """The search takes as long as all the rest, and the runs are the same."""

    look = remedies.search

    def search(run: Run, operands: list[tuple[str, str]]) -> Any:
        key = (run.path, tuple(operands))
        if key not in found_remedies:
            found_remedies[key] = look(run, operands)
        return found_remedies[key]

    monkeypatch.setattr(remedies, "search", search)


@pytest.fixture(scope="module")
def found_remedies() -> dict[Any, Any]:
    """By run and operands."""
    return {}


@pytest.fixture
def report(shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Report:
    """Run from inside `shared`."""
    monkeypatch.chdir(shared)
    return Report(shared, capsys)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Report:
    """Run from inside a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return Report(tmp_path, capsys)


# What a person reads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["faulty", "healthy"])
def test_text(report: Report, golden: Golden, name: str) -> None:
    text = report(name)
    golden(f"report_{name}.txt", text)
    assert report.err == ""
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_top_cuts_the_lists_and_says_so(report: Report) -> None:
    text = report("faulty", "--top", "1")
    assert "2 CANDIDATES FOR BF16" in text
    assert "blocks.2.fc2 dy" not in text
    assert "... and 1 candidate more: --top N shows more" in text
    assert re.search(r"\n  \.\.\. and \d findings more: --top N shows more\n", text)


def test_one_recipe(report: Report) -> None:
    text = report("faulty", "--recipe", "current")
    assert "1 CANDIDATE FOR BF16" in text
    assert "delayed" not in text.replace("current, delayed (simulated", "").replace("or delayed", "")
    assert "this report looks at recipe current" in text


def test_layers_and_steps(report: Report) -> None:
    document = report.json("faulty", "--layer", r"blocks\.[12]", "--steps", "4-8,20-")
    assert {finding["layer"] for finding in document["candidates"]} == {"blocks.1.fc1", "blocks.2.fc2"}
    assert {v["first_step"] for f in document["candidates"] for v in f["verdicts"]} == {4}
    assert {entry["n_steps"] for entry in document["judged"]} == {5}
    assert document["health"]["n_operands"] == 6
    assert document["run"]["n_steps"] == 24, "the run itself is told whole"
    assert "steps 4-8,20-, layers that match blocks.1" in report("faulty", "--layer", "blocks.1", "--steps", "4-8,20-")


def test_a_format_without_limits_is_not_judged(local: Report, synthetic_run: ModuleType) -> None:
    def forced(recipe: str, fmt: str, factor: float) -> Any:
        return synthetic_run.ForcedScale(factor, recipe=recipe, fmt=fmt, source="simulated")

    x = np.sin(np.arange(4096, dtype=np.float32)).reshape(64, 64)
    written = synthetic_run.SyntheticRun(local.folder / "run")
    for step in range(4):
        written.add("fc1", "x", x, step=step, with_current=False, scales=(forced("a", "E2M1", 96),))
    written.write()
    alone = local("run")
    assert "Not judged under a: 1 operand in a format that the rules have no limits for." in alone
    assert "The rules have limits for E4M3 and E5M2 alone" in " ".join(alone.split())
    for step in range(4):
        scales = (forced("a", "E2M1", 96), forced("b", "E4M3FNUZ", 240 * 16), forced("c", "E5M2FNUZ", 57344))
        written.add("fc2", "x", x, step=step, with_current=False, scales=scales)
    written.write()
    text = local("run")
    assert "Not judged under a: 2 operands in a format that the rules have no limits for." in text
    assert "1 CANDIDATE FOR BF16" in text
    assert "ERROR: under b the scale is 4.0 bits too large" in text
    assert re.search(r"under b .*\n  fc2 x .* 4\.0 +4/4", text)
    judged = {entry["recipe"]: entry for entry in local.json("run")["judged"]}
    assert [judged[name]["n_operands"] for name in "abc"] == [0, 1, 1]
    assert [judged[name]["n_without_limits"] for name in "abc"] == [2, 0, 0]


def test_long_names_of_recipes_do_not_make_lines_long(local: Report, synthetic_run: ModuleType) -> None:
    recipe = "delayed:amax_history_len=1,amax_compute_algo=most_recent"
    x = np.sin(np.arange(4096, dtype=np.float32)).reshape(64, 64)
    written = synthetic_run.SyntheticRun(local.folder / "run")
    for step in range(4):
        scales = (synthetic_run.ForcedScale(448 * 16.0, recipe=recipe, source="simulated"),)
        written.add("fc1", "x", x, step=step, scales=scales)
        written.add("fc2", "x", x, step=step)
    written.write()
    lines = local("run").splitlines()
    assert max(map(len, lines)) <= 80
    assert "1 CANDIDATE FOR BF16, worst first" in lines
    assert f"  under {recipe}" in lines
    assert f"in place of `{recipe}`" in " ".join(" ".join(lines).split())


def test_a_threshold_is_replaced(report: Report) -> None:
    strict = report.json("healthy", "--threshold", "sqnr_floor_e4m3=40", "--threshold", "min_steps=1")
    assert {(f["layer"], f["tensor"]) for f in strict["candidates"]} == {
        (layer, tensor) for layer in ("blocks.0.fc1", "blocks.1.fc1") for tensor in ("x", "w")
    }
    assert strict["thresholds"]["sqnr_floor_e4m3"] == 40


def test_the_commands_of_the_report_can_be_pasted(report: Report) -> None:
    text = report("faulty")
    command = text[text.index('  fp8debug sql faulty "') : text.index("  # what other recipes would do")]
    ran = subprocess.run(
        ["bash", "-c", command.replace("fp8debug", f"{sys.executable} -m fp8debug")],
        cwd=report.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0].split()[:4] == ["step", "recipe", "sqnr_db", "sqnr_low_db"]
    assert len(ran.stdout.splitlines()) == 1 + 2 * 12


def test_the_latest_run_is_taken(local: Report, runs: ModuleType, synthetic_run: ModuleType) -> None:
    runs.write_healthy(synthetic_run, local.folder / "fp8debug-runs" / "train-20260101-000000")
    (local.folder / "fp8debug-runs" / "latest").symlink_to("train-20260101-000000")
    text = local()
    assert "NO CANDIDATE FOR BF16" in text
    assert "fp8debug sql fp8debug-runs/train-20260101-000000\n" in text, "a path that can be typed"


# What a program gets --------------------------------------------------------------------------------------------------


def test_json(report: Report, golden: Golden) -> None:
    document = report.json("faulty", "--fail-on", "candidates>5")
    document["run"]["path"] = Path(document["run"]["path"]).name
    assert document.pop("fp8debug_version") == __version__
    golden("report_faulty.json", json.dumps(_rounded(document), indent=1) + "\n")


def _rounded(value: Any) -> Any:
    """Six digits: sums may differ in their last bits from one machine to the next."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def test_json_agrees_with_the_views(report: Report) -> None:
    import fp8debug

    with fp8debug.open_run(report.folder / "faulty") as run:
        expected = run.sql("select layer, tensor, recipe, db_lost, reason from candidates").fetchall()
    got = [
        (f["layer"], f["tensor"], v["recipe"], v["db_lost"], v["reason"])
        for f in report.json("faulty")["candidates"]
        for v in f["verdicts"]
    ]
    assert sorted(got) == sorted(expected)


def test_findings_of_the_document(report: Report) -> None:
    document = report.json("faulty")
    assert list(document)[2:7] == ["verdict", "n_findings", "n_errors", "n_warnings", "findings"]
    assert (document["verdict"], document["n_findings"]) == ("findings", len(document["findings"]))
    (clipped,) = [finding for finding in document["findings"] if finding["rule"] == "clipping"]
    (place,) = clipped["places"]
    assert (place["layer"], place["tensor"], place["recipe"]) == ("blocks.2.fc2", "dy", "delayed")
    assert (clipped["first_step"], clipped["last_step"], clipped["n_places"]) == (0, 22, 1)
    assert clipped["page"] == "docs/rules/clipping.md" and clipped["evidence"][0]["healthy"] == "0"
    outliers, scale = document["remedies"]
    assert (outliers["layer"], outliers["chosen"]["kind"]) == ("blocks.1.fc1", "layer_bf16")
    assert (scale["layer"], scale["chosen"]["change"]) == ("blocks.2.fc2", "delayed:margin=2")
    worst = report.json("faulty", "--top", "1")["findings"]
    assert worst == document["findings"][:1]
    document = report.json("healthy")
    assert (document["verdict"], document["findings"], document["remedies"]) == ("none", [], [])


def test_what_was_tried(report: Report) -> None:
    text = report("faulty", "--remedies")
    assert "blocks.2.fc2 dy, now delayed" in text and re.search(r"margin +fixes it +25\.7", text)
    assert max(map(len, text.splitlines())) <= 80


OWN_RULE = """-- A tensor that is there.
/*
severity = "warning"
sentence = "{layer} is there"
advice = "Nothing."
[parameters.least]
default = 1
meaning = "records of it"
source = "chosen for this test"
*/
select layer, tensor, 'all' as cause from tensors where tensor = 'x' group by layer, tensor having count(*) >= $least
"""


def test_rules_of_the_configuration(local: Report, shared: Path) -> None:
    (local.folder / "mine.sql").write_text(OWN_RULE)
    (local.folder / "fp8debug.toml").write_text(
        'rule-files = ["mine.sql"]\n[rules.clipping]\nseverity = "note"\n[rules.nonfinite]\nenabled = false\n'
        "[thresholds]\nmin_steps = 4\n"
    )
    faulty = str(shared / "faulty")
    document = local.json(faulty, "--threshold", "gap_bits=1.5")
    rules = {finding["rule"]: finding for finding in document["findings"]}
    assert "nonfinite" not in rules and rules["clipping"]["severity"] == "note"
    assert rules["mine"]["n_places"] == 4 and rules["mine"]["page"] == str(local.folder / "mine.sql")
    changed = ["threshold gap_bits = 1.5", "threshold min_steps = 4", 'clipping: severity = "note"']
    assert document["rules"]["changed"] == changed and document["rules"]["disabled"] == ["nonfinite"]
    text = " ".join(local(faulty, "--threshold", "min_steps=5").split())
    assert "rules switched off: nonfinite rules of your own: " in text
    assert "rules changed: threshold min_steps = 5; clipping:" in text, "the command line goes before the file"
    assert "blocks.*.fc1 x" not in text and "4 operands: blocks.0.fc1 x" in text
    (local.folder / "plain.toml").write_text("")
    assert local.json(faulty, "--config", "plain.toml")["rules"]["changed"] == []
    (local.folder / "fp8debug.toml").write_text("[thresholds]\nmin_step = 4\n")
    assert local(faulty, code=2) == ""
    assert "fp8debug.toml: unknown threshold 'min_step'; did you mean min_steps" in local.err


def test_nan_is_null(local: Report, runs: ModuleType, synthetic_run: ModuleType) -> None:
    path = runs.write_healthy(synthetic_run, local.folder / "run")
    run = synthetic_run.SyntheticRun(path, status="closed")
    run._next_part["steps", 0] = 1
    run.add_row("steps", step=24, loss=math.nan, grad_norm=math.inf, sampled=False)
    run.write()
    document = local.json("run", "--fail-on", "nan", code=3)
    assert document["run"]["loss"] == {
        "first": 5.5, "last": None, "first_nonfinite_step": 24, "source": "backward"
    }  # fmt: skip
    text = local("run")
    assert "loss     5.5 -> nan, not finite from step 24" in text
    assert "gradient norm 2 -> inf, not finite from step 24" in text and "PROBLEMS" not in text, "a finding tells it"


# Exit codes -----------------------------------------------------------------------------------------------------------


def test_fail_on(report: Report) -> None:
    document = report.json("faulty", "--fail-on", "candidates>5, underflow>0.3", code=3)
    (reason,) = document["fail_on"].pop("reasons")
    assert document["fail_on"] == {"expression": "candidates>5, underflow>0.3", "hit": True}
    assert reason.startswith("underflow>0.3: 24 records, worst 0.5")
    assert report.err == f"fp8debug: --fail-on {reason}\n"
    assert report.json("healthy", "--fail-on", "candidates,nan")["fail_on"]["hit"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-on", "underflw>0.1"], "unknown name 'underflw'; did you mean underflow"),
        (["--threshold", "gap_bit=2"], "unknown threshold 'gap_bit'; did you mean gap_bits"),
        (["--threshold", "gap_bits"], "expected NAME=VALUE"),
        (["--layer", "blocks.["], "layer pattern 'blocks.[' is not a regular expression"),
        (["--layer", "blocks.9"], "matches none of the 2 recorded layers; nearest names: blocks.1.fc1, blocks.0.fc1"),
        (["--steps", "9-4"], "runs backwards"),
        (["--steps", "100-"], "none of the steps asked for was recorded; this run has steps 0 to 22"),
        (["--recipe", "block"], "recipe 'block' was not recorded; this run has: current, delayed"),
    ],
)
def test_wrong_usage(report: Report, arguments: list[str], message: str) -> None:
    assert report("healthy", *arguments, code=2) == ""
    assert message in report.err
    assert report.err.count("\n") == 1


def test_unknown_options_are_wrong_usage(report: Report) -> None:
    assert report("healthy", "--top", "0", code=2) == ""
    assert report("healthy", "--colour", code=2) == ""


def test_block_recipes_alone_are_no_ground_for_a_verdict(local: Report, synthetic_run: ModuleType) -> None:
    run = synthetic_run.SyntheticRun(local.folder / "run", recipes=["mxfp8", "nvfp4"])
    run.add("fc1", "x", np.ones((64, 64), np.float32), step=0, with_current=False)
    run.write()
    text = " ".join(local("run").split())
    assert "NOT ENOUGH EVIDENCE FOR A VERDICT" in text
    assert "no error sums of any: recorded was mxfp8 and nvfp4. What block recipes do" in text
    assert "`fp8debug whatif` shows" in text and "smaller `--every`" not in text


def test_nothing_judged_is_no_pass(local: Report, synthetic_run: ModuleType) -> None:
    """A gate must not turn green because nothing was looked at."""
    run = synthetic_run.SyntheticRun(local.folder / "run", status="closed", tensors=["x"])
    run.add("fc", "x", synthetic_run.as_bfloat16([[1.0, 2.0]]), step=0, sampled=False)
    run.add_row("steps", step=0, loss=1.0, sampled=False)
    run.write()
    text = local("run")
    assert "NOT ENOUGH EVIDENCE FOR A VERDICT" in text
    assert "No tensor was sampled" in text
    assert local("run", "--fail-on", "candidates", code=1) == ""
    assert "cannot evaluate --fail-on candidates>0: not enough evidence" in local.err
    local("run", "--fail-on", "nan")


def test_exit_codes_of_a_process(shared: Path) -> None:
    for arguments, code in ((["faulty", "--fail-on", "candidates"], 3), (["nowhere"], 1)):
        ran = subprocess.run(
            [sys.executable, "-m", "fp8debug", "report", *arguments],
            cwd=shared, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, check=False,
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr


# Runs that are not as they should be ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "no such run: "),
        (lambda path: path.mkdir(), "/run has no run.json"),
        (lambda path: (path.mkdir(), (path / "run.json").write_text('{"schema')), "is not valid JSON"),
    ],
)
def test_no_run(local: Report, prepare: Callable[[Path], Any], message: str) -> None:
    prepare(local.folder / "run")
    assert local("run", code=1) == ""
    assert message in local.err and local.err.count("\n") == 1


def test_no_runs_at_all(local: Report) -> None:
    local(code=1)
    assert "no run found: fp8debug-runs/ holds none; record one with" in local.err


def test_empty_run(local: Report, synthetic_run: ModuleType) -> None:
    synthetic_run.SyntheticRun(local.folder / "run")
    assert local("run", code=1) == ""
    assert "nothing recorded yet in" in local.err and "wait for the first flush" in local.err


def test_run_without_tensors(local: Report, synthetic_run: ModuleType) -> None:
    run = synthetic_run.SyntheticRun(local.folder / "run", status="disabled", status_reason="RuntimeError: boom")
    run.add_row("steps", step=0, loss=1.0, sampled=False)
    run.write()
    assert local("run", code=1) == ""
    assert "no tensor was recorded in" in local.err and "RuntimeError: boom" in local.err


def test_bad_files_are_named_and_the_rest_is_reported(
    local: Report, runs: ModuleType, synthetic_run: ModuleType
) -> None:
    path = RunDir(runs.write_healthy(synthetic_run, local.folder / "run"))
    path.part_path("errors", 0, 7).write_bytes(b"PAR1 cut")
    pq.write_table(pa.table({"a": [1]}), path.part_path("tensors", 0, 8))
    text = " ".join(local("run").split())
    assert "NO CANDIDATE FOR BF16" in text
    assert "part-000007.parquet is left out: not a readable Parquet file" in text
    assert "part-000008.parquet is left out: not a part of table tensors" in text


@pytest.mark.parametrize(("held", "status"), [(True, "still running"), (False, "killed: its process is gone")])
def test_running_or_killed(local: Report, runs: ModuleType, synthetic_run: ModuleType, held: bool, status: str) -> None:
    path = RunDir(runs.write_healthy(synthetic_run, local.folder / "run", status="running"))
    # A lock of another descriptor counts, even one of this very process.
    with path.lock_path(0).open("w") as lock:
        if held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        text = local("run")
    assert f"status   {status}" in text
    assert ("its last, unflushed part is missing" in " ".join(text.split())) is not held


def test_missing_ranks_and_tensors(local: Report, runs: ModuleType, synthetic_run: ModuleType) -> None:
    runs.write_healthy(synthetic_run, local.folder / "run", world_size=4, tensors=["x", "w", "dy", "dx", "dw"])
    text = " ".join(local("run").split())
    assert "3 of 4 ranks left no records: 1, 2, 3" in text
    assert "no dw was recorded for blocks.0.fc1, blocks.1.fc1: no gradient reached it" in text
    assert "no dx was recorded for blocks.0.fc1, blocks.1.fc1: its input needs no gradient" in text


def test_equal_events_are_one_problem(local: Report, runs: ModuleType, synthetic_run: ModuleType) -> None:
    path = runs.write_healthy(synthetic_run, local.folder / "run", world_size=2)
    run = synthetic_run.SyntheticRun(path, status="closed", world_size=2, recipes=["current", "delayed"])
    for step in range(30):
        run.add_row(
            "events", step=step, kind="unsupported", layer=f"fc.{step % 5}", tensor="x", message="no such dtype"
        )
        run.add_row("events", kind="assumption", message=f"assumed {step}")
    run.write()
    document = local.json("run")
    (unsupported,) = [p for p in document["problems"] if p["kind"] == "unsupported"]
    assert unsupported["count"] == 30
    assert unsupported["message"] == "fc.0 x, fc.1 x, fc.2 x and 2 more: no such dtype (first at step 0)"
    text = local("run")
    assert "no such dtype" in text and "such dtype" not in text[text.index("PROBLEMS") :], "a finding tells it"
    assert re.search(r'\n  \.\.\. and 1\d more: fp8debug sql run "from events"\n', text)
    assert "simulated: each rank from its own amax" in text


def test_fp32_operands_are_told(local: Report, runs: ModuleType, synthetic_run: ModuleType) -> None:
    run = synthetic_run.SyntheticRun(local.folder / "run", status="closed", tensors=["x"])
    for step in range(3):
        run.add("fc", "x", runs.Values(synthetic_run).bell(), step=step, approx="bf16")
    run.write()
    assert "1 operand is in FP32 or FP64: histograms hold the BF16-rounded values" in local("run")


def test_few_steps_are_no_verdict(local: Report, runs: ModuleType, synthetic_run: ModuleType) -> None:
    runs.write_healthy(synthetic_run, local.folder / "run", steps=range(1))
    text = local("run")
    assert "verdict  not enough evidence" in text
    assert "1 sampled step could be judged, a verdict takes at least 2" in text


HOSTILE = "net.[red]\x1b[31mfc\x1b[0m\r\u202e'); drop--\u2028\"$(id)`x`.é"


def test_hostile_names_are_shown_as_they_are(local: Report, runs: ModuleType, synthetic_run: ModuleType) -> None:
    values = runs.Values(synthetic_run)
    run = synthetic_run.SyntheticRun(local.folder / "run", status="closed", tensors=["x"])
    for step in range(4):
        run.add(HOSTILE, "x", values.with_outliers(3e5), step=step)
    run.add_row("events", kind="unsupported", layer=HOSTILE, message="a \x07 bell")
    run.write()
    text = local("run")
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert r"net.[red]\x1b[31mfc\x1b[0m\r\u202e'); drop--\u2028" + '"$(id)`x`.é x' in text
    assert r"a \x07 bell" in text
    command = text[text.index('  fp8debug sql run "') : text.index("  # what else can be asked:")]
    ran = subprocess.run(
        ["bash", "-c", command.replace("fp8debug", f"{sys.executable} -m fp8debug", 1)],
        cwd=local.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 1 + 4
    assert local.json("run")["candidates"][0]["layer"] == HOSTILE


def test_long_names_stay_whole(local: Report, runs: ModuleType, synthetic_run: ModuleType) -> None:
    values = runs.Values(synthetic_run)
    name = "model." + ".".join(f"layers.{i}.block" for i in range(9)) + ".mlp.down_proj"
    run = synthetic_run.SyntheticRun(local.folder / "run", status="closed", tensors=["x"])
    for step in range(4):
        run.add(name, "x", values.with_outliers(3e5), step=step)
    run.write()
    lines = local("run").splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("   where "))
    assert "".join(line.strip() for line in lines[place : place + 3]).startswith(f"where     {name} x")
    table = next(i for i, line in enumerate(lines) if line.startswith("  under current"))
    assert "".join(line.strip() for line in lines[table + 2 : table + 5]).startswith(f"{name} x")
    assert max(map(len, lines[: table + 6])) <= 80
