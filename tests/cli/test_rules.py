"""`fp8debug rules`: the rules with the numbers in force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8debug.analysis.diagnosis import load_rules
from fp8debug.cli.main import main


def rules(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["rules", *arguments]) == code
    out, err = capsys.readouterr()
    return out or err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = rules(capsys)
    assert max(map(len, text.splitlines())) <= 80
    for rule in load_rules():
        assert f"\n{rule.name}  {rule.severity}\n" in text
        for name in rule.parameters or {}:
            assert f"    {name} = " in text


def test_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = rules(capsys, "clipping")
    rule = load_rules()["clipping"]
    assert rule.sql.strip().splitlines()[-1] in text and "docs/rules/clipping.md" in text
    assert "threshold gap_bits = 1: hit when the scale is more bits" in text
    assert "says: under {recipe} the scale is" in text


def test_what_the_user_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "fp8debug.toml").write_text(
        '[thresholds]\ngap_bits = 2\n[rules.clipping]\nseverity = "watch"\n[rules.gain_off]\nenabled = false\n'
    )
    text = rules(capsys)
    assert "\nclipping  watch\n" in text and '  changed: severity = "watch"\n' in text
    assert "  switched off and changed: enabled = false\n" in text
    assert "threshold gap_bits = 2 (default 1): hit when" in rules(capsys, "clipping")
    document = json.loads(rules(capsys, "--json"))
    by_name = {rule["name"]: rule for rule in document["rules"]}
    assert by_name["gain_off"]["enabled"] is False and by_name["clipping"]["severity"] == "watch"
    assert document["thresholds"]["gap_bits"]["value"] == 2 and document["thresholds"]["gap_bits"]["default"] == 1


def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown rule 'cliping'; did you mean clipping" in rules(capsys, "cliping", code=2)
    assert "cannot read nowhere.toml" in rules(capsys, "--config", "nowhere.toml", code=2)
