"""Rules on logged numbers, and what a report says of a run that has nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from fp8debug.analysis.diagnosis import Finding
from fp8debug.analysis.importing import Imported
from fp8debug.analysis.report import Report, build_report
from fp8debug.analysis.run import open_run
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.terminal import render_report

WriteLog = Callable[..., Path]
Import = Callable[..., Imported]
OVERFLOW = "fp8_delayed_scaling_overflows%"


def report_of(path: Path) -> Report:
    with open_run(path, threads=1) as run:
        return build_report(run)


def by_place(report: Report) -> dict[tuple[str, str | None], Finding]:
    return {(f.rule, p.layer): f for f in report.findings for p in f.places}


def test_a_healthy_log_is_not_judged(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    scalars = []
    for step in range(40):
        for tensor, amax in (("activation", 4.0), ("weight", 0.1), ("gradient", 1e-5)):
            unit = amax * (1 + 0.2 * math.sin(7 * step))
            scalars += [
                (f"fc_{tensor}_cur_amax", step, unit), (f"fc_{tensor}_std", step, unit / 4.5),
                (f"fc_{tensor}_underflows%", step, 60.0 if step == 7 else 0.02),
                (f"fc_{tensor}_{OVERFLOW}", step, 0.4 if step == 3 else 0.0),
                (f"fc_{tensor}_scale_inv_max", step, unit / 448),
            ]  # fmt: skip
    import_logs([write_log(scalars)])
    report = report_of(tmp_path / "run")
    assert report.findings == ()
    assert report.verdict == "not_enough_evidence"
    assert report.given is not None
    assert (report.given.n_numbers, report.given.n_nonfinite) == (600, 0)
    assert report.given.statistics == ("amax", "overflow", "scale_inv_max", "std", "underflow_all")
    text = " ".join(render_report(report, Looks(), run_path="run").split())
    assert "imported from logs of another tool" in text
    assert "debug logs of Transformer Engine: 600 numbers as they were logged" in text
    assert "NOT ENOUGH EVIDENCE" in text and "it cannot be told what FP8 costs an operand" in text
    assert "No logged number is NaN or infinite." in text and "No NaN and no Inf" not in text
    assert "no gradient reached it" not in text


def test_underflow_overflow_and_growth(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    scalars: list[tuple[str, int, float]] = []
    for step in range(0, 200, 5):
        late = step >= 100
        scalars += [
            ("half_gradient_underflows%", step, 60.0), ("some_gradient_underflows%", step, 12.0 if late else 0.0),
            ("guess_gradient_mxfp8_underflows%", step, 60.0),
            (f"clipped_activation_{OVERFLOW}", step, 0.4 if late else 0.0),
            (f"hardly_activation_{OVERFLOW}", step, 0.01 if late else 0.0),
            ("outlier_activation_cur_amax", step, 4 * 2 ** (step / 50)), ("outlier_activation_std", step, 1.0),
            ("alike_activation_cur_amax", step, 4 * 2 ** (step / 50)),
            ("alike_activation_std", step, 2 ** (step / 50)),
            ("alone_weight_cur_amax", step, 2 ** (step / 20)), ("slow_weight_cur_amax", step, 2 ** (step / 100)),
        ]  # fmt: skip
    import_logs([write_log(scalars)])
    report = report_of(tmp_path / "run")
    found = by_place(report)
    assert found.keys() == {
        ("given_underflow", "half"), ("given_underflow", "some"), ("given_underflow", "guess"),
        ("given_overflow", "clipped"), ("given_overflow", "hardly"),
        ("given_amax_growth", "outlier"), ("given_amax_growth", "alone"),
    }  # fmt: skip
    severities = {layer: finding.severity for (_, layer), finding in found.items()}
    assert severities == {
        "half": "warning", "some": "watch", "guess": "watch", "clipped": "warning", "hardly": "watch",
        "outlier": "watch", "alone": "watch",
    }  # fmt: skip
    assert (
        found["given_underflow", "some"].message
        == "12 % of all elements become zero under the recipe in use, by the log"
    )
    place = found["given_underflow", "some"].worst
    assert (place.first_step, place.last_step, place.n_steps, place.n_observed_steps) == (100, 195, 20, 36)
    assert "may not be in use" in found["given_underflow", "guess"].message
    assert found["given_overflow", "clipped"].message.startswith("0.4 % of the elements are clipped")
    # Quarters of 40 points: steps 0 to 45 and 150 to 195, with medians at 22.5 and 172.5, 3 doublings apart.
    grown = found["given_amax_growth", "outlier"].message
    assert grown.startswith("the largest value over the standard deviation has grown from 5.47 to 43.7")
    assert all(finding.needs for finding in found.values())
    assert report.verdict == "findings"


def test_numbers_that_are_not_finite(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    scalars = [
        ("sum_activation_l2_norm", 4, math.inf), ("merged_activation_std", 4, math.nan),
        ("zero_activation_dynamic_range", 4, math.inf), ("fine_activation_cur_amax", 4, 1.0),
        ("later_activation_cur_amax", 9, math.inf), ("first_gradient_mse", 6, math.nan),
        ("first_gradient_max", 6, math.nan), ("first_gradient_max", 7, math.nan),
    ]  # fmt: skip
    import_logs([write_log(sorted(scalars, key=lambda scalar: scalar[1]))])
    report = report_of(tmp_path / "run")
    error, warning = report.findings
    assert (error.severity, error.confidence, error.layers) == ("error", "certain", ("first", "later"))
    assert error.message == "the log gives NaN for the max of this operand, and of 1 more"
    assert (error.first_step, error.last_step) == (6, 9)
    assert (warning.severity, warning.layers, warning.confidence) == ("warning", ("sum",), "likely")
    assert report.given is not None and report.given.n_nonfinite == 7


def test_a_planted_outlier_is_found_by_logged_numbers_alone(
    write_log: WriteLog, import_logs: Import, tmp_path: Path, repository: Path
) -> None:
    """What Transformer Engine would have logged of two small trainings; step 20 is the first that is judged."""
    words = {"x": "activation", "w": "weight", "dy": "gradient"}
    query = """select step, layer, tensor, n_underflow / n, n_overflow / n from errors
        where recipe like 'delayed%' and not alternate order by step"""
    scalars = []
    for dump in ("gpt-healthy", "gpt-outlier"):
        with open_run(repository / "sample_dumps" / dump, threads=1) as run:
            for step, layer, tensor, underflow, overflow in run.sql(query).fetchall():
                name = f"{dump}.{layer}_{words[tensor]}_fp8_delayed_scaling"
                scalars += [
                    (f"{name}_underflows%", step, 100 * underflow),
                    (f"{name}_overflows%", step, 100 * overflow),
                ]
    import_logs([write_log(sorted(scalars, key=lambda scalar: scalar[1]))])
    serious = [finding for finding in report_of(tmp_path / "run").findings if finding.severity != "watch"]
    assert {(finding.rule, finding.first_step) for finding in serious} == {("given_underflow", 20)}
    assert {layer for finding in serious for layer in finding.layers} == {
        "gpt-outlier.blocks.1.fc1", "gpt-outlier.blocks.2.qkv",
    }  # fmt: skip
