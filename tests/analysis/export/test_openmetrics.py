"""The exposition, read back by Prometheus' own parser."""

from __future__ import annotations

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as older_format

from fp8debug.analysis import Run
from fp8debug.analysis.export import Narrowing, openmetrics_lines


@pytest.fixture(scope="module")
def lines(known: Run) -> list[str]:
    return list(openmetrics_lines(known))


def test_read_back(lines: list[str], hostile: str) -> None:
    text = "\n".join(lines) + "\n"
    families = {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    assert len(families) == 13
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families.values()
        for sample in family.samples
    }
    for layer in ("fc", hostile):
        operand = (("fmt", "E4M3"), ("layer", layer), ("recipe", "delayed"), ("tensor", "x"))
        assert values["fp8debug_underflow_ratio", operand] == 1 / 3, "of step 0, the newest that was sampled"
        assert values["fp8debug_scale_gap_bits", operand] == 2.0, "of step 7"
        assert values["fp8debug_amax", (("layer", layer), ("tensor", "x"))] == 448.0
    assert values["fp8debug_nonfinite_elements_total", (("layer", "fc"), ("tensor", "dy"))] == 2.0
    assert values["fp8debug_nonfinite_elements_total", (("layer", "fc"), ("tensor", "x"))] == 0.0
    assert values["fp8debug_events_total", (("kind", "never_fired"),)] == 1.0
    assert values["fp8debug_run_info", (("run_id", "synthetic"), ("status", "closed"))] == 1.0
    assert values["fp8debug_step", ()] == 7.0 and math.isnan(values["fp8debug_loss", ()])
    assert values["fp8debug_grad_norm", ()] == 1.5, "the newest that is known"
    assert families["fp8debug_underflow_ratio"].unit == "ratio" and families["fp8debug_events"].type == "counter"
    assert {(name, family.unit) for name, family in families.items() if family.unit} == {
        ("fp8debug_step_started_timestamp_seconds", "seconds"), ("fp8debug_overflow_ratio", "ratio"),
        ("fp8debug_underflow_ratio", "ratio"), ("fp8debug_sqnr_decibels", "decibels"),
        ("fp8debug_scale_gap_bits", "bits"), ("fp8debug_nonfinite_elements", "elements"),
    }  # fmt: skip


def test_the_older_text_format_reads_the_same_samples(lines: list[str]) -> None:
    """That is what the node exporter parses; it refuses timestamps and types that it does not know."""
    text = "\n".join(lines) + "\n"
    newer, older = (
        [(sample.name, sample.labels, str(sample.value)) for family in parse(text) for sample in family.samples]
        for parse in (text_string_to_metric_families, older_format)
    )
    assert newer == older and len(newer) > 15
    assert {line.split(" ")[3] for line in lines if line.startswith("# TYPE")} == {"gauge", "counter"}
    assert lines[-1] == "# EOF" and not any("\n" in line for line in lines)


def test_narrowed(known: Run) -> None:
    text = "\n".join(openmetrics_lines(known, Narrowing(layer="^fc$", steps=((0, 0),))))
    assert "script" not in text and "fp8debug_step 0" in text and "fp8debug_loss 2.5" in text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e-300, 0.1])
def test_numbers(value: float) -> None:
    from fp8debug.analysis.export.openmetrics import Family

    (*_, line) = Family("a", "gauge", "A.").lines([({}, value)])
    (family,) = text_string_to_metric_families(f"# TYPE a gauge\n{line}\n# EOF\n")  # type: ignore[no-untyped-call]
    assert str(family.samples[0].value) == str(float(value))
