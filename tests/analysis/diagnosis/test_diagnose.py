"""From the rows of queries to findings: order, causes, what explains what, sentences."""

from __future__ import annotations

import math

import pytest

from fp8debug.analysis import Run
from fp8debug.analysis.diagnosis import Finding, Rule, RuleBook, diagnose
from fp8debug.analysis.diagnosis.rule import EvidenceColumn, Parameter
from fp8debug.errors import UsageError

HALF = "unnest(['blocks.0.fc2', 'blocks.1.fc2', 'blocks.2.fc1']) as layer"


def rule(name: str = "rule", sql: str = "select 'fc' as layer", **more: object) -> Rule:
    given = {"severity": "error", "sentence": "it is so", "advice": "Do this.", **more}
    return Rule(name=name, meaning="Something.", sql=sql, **given)  # type: ignore[arg-type]


def found(run: Run, *rules: Rule) -> tuple[Finding, ...]:
    return diagnose(run, RuleBook(rules))


def test_one_place(empty_run: Run) -> None:
    sql = """select 'fc' as layer, 'x' as tensor, 'fprop' as gemm, 'current' as recipe, 2 as rank, 3 as first_step,
        9 as last_step, 4 as n_steps, 7 as n_observed_steps, 1.5 as db_lost, 0.25 as gain"""
    (finding,) = found(
        empty_run,
        rule(sql=sql, sentence="values come back times {gain:.2f}", evidence=(EvidenceColumn("gain", "gain", "1"),)),
    )
    assert (finding.rule, finding.severity, finding.confidence) == ("rule", "error", "likely")
    assert finding.message == "values come back times 0.25" and finding.advice == "Do this."
    place = finding.worst
    assert (place.layer, place.tensor, place.gemm, place.recipe, place.rank) == ("fc", "x", "fprop", "current", 2)
    assert (finding.first_step, finding.last_step, place.n_steps, place.n_observed_steps) == (3, 9, 4, 7)
    assert [(e.title, e.value, e.healthy) for e in finding.evidence] == [("gain", "0.25", "1")]


def test_no_row_is_no_finding(empty_run: Run) -> None:
    assert found(empty_run, rule(sql="select 'fc' as layer where false")) == ()


def test_places_that_differ_in_numbers_are_one_cause(empty_run: Run) -> None:
    first, second = found(empty_run, rule(sql=f"select {HALF}, 'x' as tensor, 5 - length(layer) as db_lost"))
    assert [first.layers, second.layers] == [("blocks.0.fc2", "blocks.1.fc2"), ("blocks.2.fc1",)]


def test_a_rule_may_say_what_one_cause_is(empty_run: Run) -> None:
    (finding,) = found(empty_run, rule(sql=f"select {HALF}, 'cache' as cause, unnest([1, 3, 2]) as db_lost"))
    assert finding.layers == ("blocks.1.fc2", "blocks.2.fc1", "blocks.0.fc2"), "worst first"
    assert (finding.first_step, finding.last_step) == (None, None)


def test_steps_are_of_all_places(empty_run: Run) -> None:
    sql = f"select {HALF}, 'all' as cause, unnest([5, 3, null]) as first_step, unnest([7, 9, null]) as last_step"
    (finding,) = found(empty_run, rule(sql=sql))
    assert (finding.first_step, finding.last_step) == (3, 9)


def test_order(empty_run: Run) -> None:
    """By severity, then the rule's priority, then dB lost; what is not finite is worst, what has no number last."""
    sql = """select unnest(['a', 'b', 'c', 'd']) as layer,
        unnest([3.0, 'inf'::double, null, 'nan'::double]) as db_lost, layer as cause"""
    order = found(
        empty_run,
        rule("late", severity="error", priority=60),
        rule("minor", severity="watch", priority=1),
        rule("early", sql, severity="error", priority=10),
        rule("harm", severity="warning", priority=1),
    )
    assert [(f.rule, f.layers[0]) for f in order[:2]] == [("early", "b"), ("early", "a")]
    assert {f.layers[0] for f in order[2:4]} == {"c", "d"}
    assert [f.rule for f in order[4:]] == ["late", "harm", "minor"]
    assert math.isinf(order[0].worst.db_lost or 0)


def test_what_one_rule_explains_is_not_told_twice(empty_run: Run) -> None:
    place = "select 'fc' as layer, 'x' as tensor"
    cause = rule("cause", place, explains=("effect",))
    effect = rule("effect", f"{place} union all select 'fc', 'w' union all select 'head', 'x'")
    assert {(f.rule, p.layer, p.tensor) for f in found(empty_run, cause, effect) for p in f.places} == {
        ("cause", "fc", "x"), ("effect", "fc", "w"), ("effect", "head", "x"),
    }  # fmt: skip
    of_layer = rule("cause", "select 'fc' as layer", explains=("effect",))
    assert [p.layer for f in found(empty_run, of_layer, effect) for p in f.places] == ["fc", "head"]
    of_run = rule("cause", "select 1 as n", explains=("effect",))
    assert [f.rule for f in found(empty_run, of_run, effect)] == ["cause"]


def test_of_two_rules_that_explain_each_other_the_first_stays(empty_run: Run) -> None:
    a, b = rule("a", explains=("b",), priority=2), rule("b", explains=("a",), priority=1)
    assert [f.rule for f in found(empty_run, a, b)] == ["b"]
    assert [f.rule for f in found(empty_run, b)] == ["b"]


def test_a_row_may_say_otherwise_and_the_user_may_say_more(empty_run: Run) -> None:
    sql = "select 'fc' as layer, 'note' as severity, 'not_enough_evidence' as confidence, 'record w' as needs"
    (finding,) = found(empty_run, rule(sql=sql))
    assert (finding.severity, finding.confidence, finding.needs) == ("note", "not_enough_evidence", "record w")
    (finding,) = found(empty_run, rule(sql=sql).overridden({"severity": "warning"}, "a.toml"))
    assert finding.severity == "warning"


def test_sentences_with_nothing_and_with_lists(empty_run: Run) -> None:
    sql = "select null as gain, ['a', 'b'] as layers, '{layer}' as layer"
    (finding,) = found(empty_run, rule(sql=sql, sentence="{gain:.2f} in {layers} of {layer}"))
    assert finding.message == "unknown in a, b of {layer}", "a name is a name, whatever it looks like"
    evidence = (EvidenceColumn("gain", "gain", "1"),)
    assert found(empty_run, rule(sql=sql, evidence=evidence))[0].evidence == ()


def test_parameters_and_thresholds(empty_run: Run) -> None:
    sql = "select 'fc' as layer, $limit as n, getvariable('gap_bits') as bits where $limit > 3"
    limit = Parameter(default=4, meaning="", source="")
    (finding,) = found(empty_run, rule(sql=sql, parameters={"limit": limit}, sentence="{n:.0f} and {bits:.0f}"))
    assert finding.message == "4 and 1"
    assert found(empty_run, rule(sql=sql, parameters={"limit": limit}).overridden({"limit": 3}, "a.toml")) == ()


def test_a_rule_that_has_nothing_to_look_at_is_not_asked(empty_run: Run) -> None:
    assert found(empty_run, rule(sql="select nothing from nowhere", only_if=("1 > 2",))) == ()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (rule(sql="select x from nowhere"), "rule rule: its query cannot be run: Catalog Error"),
        (rule(sql="select $limit as layer"), "rule rule: its query cannot be run"),
        (rule(sql="select 'bad' as severity"), "its query gives severity 'bad'"),
        (rule(sql="select 'sure' as confidence"), "and confidence 'sure'; expected one of"),
        (rule(sentence="{gain}"), "'{gain}' cannot be filled in: KeyError('gain')"),
        (rule(sentence="{layer:.2f}"), "'{layer:.2f}' cannot be filled in: ValueError"),
        (rule(evidence=(EvidenceColumn("gain", "gain", "1"),)), "'{gain:.4g}' cannot be filled in: KeyError"),
    ],
)
def test_rules_that_cannot_be_asked(empty_run: Run, broken: Rule, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        found(empty_run, broken)
    assert message in str(caught.value)
