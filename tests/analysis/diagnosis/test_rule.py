"""A rule file: what is read from it, what is refused, and what the user may change of it."""

from __future__ import annotations

from importlib.resources import files

import pytest

from fp8debug.analysis.diagnosis.rule import parse_rule
from fp8debug.analysis.diagnosis.rulebook import shipped_rules
from fp8debug.analysis.problems import Problem
from fp8debug.errors import UsageError

TEXT = """-- A weight that is too large.
/*
severity = "watch"
sentence = "the largest weight of {layer} is {largest:.3g}"
advice = "Look at the learning rate."
explains = ["clipping"]
thresholds = ["gap_bits"]
problems = ["nonfinite"]

[parameters.limit]
default = 4
meaning = "weights beyond this are told"
source = "the largest value of the serving format"

[[evidence]]
column = "largest"
title = "largest weight"
healthy = "below 4"
*/
select layer, max(amax) as largest from tensors group by layer having max(amax) > $limit
"""


def test_what_is_read() -> None:
    rule = parse_rule("loud", TEXT, "loud.sql")
    assert (rule.name, rule.meaning, rule.severity, rule.confidence) == (
        "loud", "A weight that is too large.", "watch", "likely"
    )  # fmt: skip
    assert rule.explains == ("clipping",) and rule.thresholds == ("gap_bits",) and rule.problems == ("nonfinite",)
    assert rule.arguments == {"limit": 4} and rule.enabled and rule.priority == 50
    assert rule.evidence[0].title == "largest weight" and rule.evidence[0].format == ".4g"
    assert rule.sql.startswith("select layer") and rule.page == "docs/rules/loud.md"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("/*\n", "", "loud.sql: not a rule file; expected a first line `-- meaning`"),
        ('= "watch"', "= watch", "loud.sql: the part between /* and */ is not valid TOML"),
        ("severity =", "severty =", "unknown key 'severty'; did you mean severity"),
        ('severity = "watch"\n', "", 'expected `severity = "..."` between'),
        ('"watch"', '"fatal"', "severity: got 'fatal'; expected error, warning, watch, note"),
        ('advice = "Look', 'confidence = "sure"\nadvice = "Look', "confidence: got 'sure'; expected certain, likely"),
        ('"Look at the learning rate."', "7", "advice is 7; expected a text"),
        ('["clipping"]', '"clipping"', "explains is 'clipping'; expected a list"),
        ('["gap_bits"]', '["gap_bit"]', "unknown threshold 'gap_bit'; did you mean gap_bits"),
        ('source = "the largest value of the serving format"\n', "", "a parameter or an evidence column is incomplete"),
        ('healthy = "below 4"\n', 'hale = "below 4"\n', "a parameter or an evidence column is incomplete"),
        ("[parameters.limit]", "[[parameters]]", "parameters is [{"),
    ],
)
def test_what_is_refused(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(UsageError) as caught:
        parse_rule("loud", TEXT.replace(old, new), "loud.sql")
    assert str(caught.value).startswith("loud.sql: ") and message in str(caught.value)


def test_what_the_user_changes() -> None:
    rule = parse_rule("loud", TEXT, "loud.sql").overridden(
        {"severity": "error", "limit": 2, "enabled": False}, "a.toml"
    )
    assert (rule.severity, rule.arguments, rule.enabled) == ("error", {"limit": 2}, False)
    assert rule.changes == ('severity = "error"', "limit = 2", "enabled = false")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"severity": "loud"}, "got 'loud'; expected error, warning, watch, note"),
        ({"enabled": 1}, "got 1; expected true or false"),
        ({"limit": "4"}, "got '4'; expected a number such as 4"),
        ({"limit": True}, "got True; expected a number"),
        ({"limits": 3}, "unknown; did you mean limit"),
    ],
)
def test_what_the_user_may_not(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rule("loud", TEXT, "loud.sql").overridden(settings, "a.toml")
    (name,) = settings
    assert str(caught.value).startswith(f"a.toml: rules.loud.{name}: ") and message in str(caught.value)


# Those shipped --------------------------------------------------------------------------------------------------------


def test_shipped_rules_refer_to_what_there_is() -> None:
    names = {rule.name for rule in shipped_rules()}
    assert {name for rule in shipped_rules() for name in rule.explains} <= names
    for rule in shipped_rules():
        assert rule.name not in rule.explains
        unused = [name for name in rule.parameters or {} if f"${name}" not in rule.sql]
        assert unused == [], rule.name


def test_no_shipped_rules_explain_each_other_in_a_circle() -> None:
    """All would be left out; of two that explain each other, the first stays."""
    explained = {rule.name: set(rule.explains) for rule in shipped_rules()}

    def follows(name: str, seen: frozenset[str]) -> set[str]:
        direct = {other for other in explained.get(name, set()) if name not in explained.get(other, set())}
        return direct.union(*(follows(other, seen | {name}) for other in direct - seen))

    assert [name for name in explained if name in follows(name, frozenset())] == []


def test_problems_that_rules_tell_exist() -> None:
    """Kinds are words of the code: of events, or of `Problem`."""
    text = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("hooks", "analysis", "integrations")
        for path in sorted((files("fp8debug") / folder).rglob("*.py"))  # type: ignore[attr-defined]
    )
    told = {kind for rule in shipped_rules() for kind in rule.problems}
    assert [kind for kind in sorted(told) if f'"{kind}"' not in text and kind not in (Problem.__doc__ or "")] == []
