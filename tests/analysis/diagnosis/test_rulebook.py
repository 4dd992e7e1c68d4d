"""All rules in force: those shipped, the user's own, and what a configuration file says of either."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8debug.analysis.diagnosis import load_rules
from fp8debug.analysis.diagnosis.rulebook import shipped_rules
from fp8debug.errors import UsageError
from fp8debug.settings import RuleSettings, load_rule_settings

OWN = """-- Something.
/*
severity = "note"
sentence = "it is so"
advice = "Nothing."
priority = 1
*/
select 'fc' as layer
"""


def settings(folder: Path, toml: str, **own: str) -> RuleSettings:
    for name, text in own.items():
        (folder / f"{name}.sql").write_text(text)
    (folder / "fp8debug.toml").write_text(toml)
    return load_rule_settings(environment={}, folder=folder)


def test_as_shipped() -> None:
    book = load_rules()
    assert book.rules == shipped_rules() and book.disabled == ()
    assert [rule.priority for rule in book] == sorted(rule.priority for rule in book)
    assert "clipping" in {rule.name for rule in book}


def test_an_own_rule(tmp_path: Path) -> None:
    book = load_rules(settings(tmp_path, 'rule-files = ["mine.sql"]', mine=OWN))
    assert book["mine"].file == book["mine"].page == str(tmp_path / "mine.sql")
    assert book.rules[0].name == "mine", "the order is by priority"
    assert len(book) == len(shipped_rules()) + 1


def test_rules_switched_off_and_changed(tmp_path: Path) -> None:
    toml = 'rule-files = ["mine.sql"]\n[rules.clipping]\nenabled = false\n[rules.mine]\nseverity = "watch"\n'
    book = load_rules(settings(tmp_path, toml, mine=OWN))
    assert "clipping" not in {rule.name for rule in book}
    assert [rule.name for rule in book.disabled] == ["clipping"]
    assert book["clipping"].name == "clipping", "one that is switched off can still be looked at"
    assert book["mine"].severity == "watch" and book["mine"].changes == ('severity = "watch"',)


@pytest.mark.parametrize(
    ("toml", "own", "message"),
    [
        ('rule-files = ["mine.sql"]', None, "cannot read the rule file"),
        ('rule-files = ["clipping.sql"]', "clipping", "there is a rule 'clipping' already; change it under"),
        ("[rules.cliping]\nenabled = false", None, "unknown rule 'cliping'; did you mean clipping"),
        ("[rules.clipping]\nenbled = false", None, "rules.clipping.enbled: unknown; did you mean enabled"),
        ("rules = 3", None, "rules is 3; expected a table, [rules]"),
        ("[rules]\nclipping = 3", None, "clipping is 3; expected a table"),
        ("rule-files = 3", None, "rule-files: got 3; expected"),
    ],
)
def test_what_is_refused(tmp_path: Path, toml: str, own: str | None, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_rules(settings(tmp_path, toml, **({own: OWN} if own else {})))
    assert message in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("select 'fc' as layer", "drop table x", "DROP is refused"),
        ("select 'fc' as layer", "select 1; select 2", "expected exactly one SQL statement, got 2"),
        ("select 'fc' as layer", "select from where", "cannot parse the query"),
        ("priority = 1", 'only_if = ["1; drop table x"]', "expected exactly one SQL statement, got 2"),
    ],
)
def test_own_rules_only_read(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_rules(settings(tmp_path, 'rule-files = ["mine.sql"]', mine=OWN.replace(old, new)))
    assert message in str(caught.value) and "mine.sql: " in str(caught.value)


def test_no_such_rule() -> None:
    with pytest.raises(UsageError, match="unknown rule 'clip'; did you mean clipping"):
        load_rules()["clip"]
