"""Loss curves and manifests of trainings that were recorded elsewhere: CSV, JSON, JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fp8debug import reading
from fp8debug.analysis.compare.curve import Curve
from fp8debug.analysis.compare.records import Record, curve_of_records
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.reading import parse_json

_LISTS = ("steps", "log_history", "history", "records", "data", "metrics")
"""Keys of a JSON object below which the records may be."""


def read_file(path: Path, name: str) -> Curve:
    """Read a curve from a file; what kind it is shows in what it holds.

    Raises:
        Fp8DebugError: the file cannot be read.
        UsageError: it holds no curve.
    """
    text = read_text(path)
    start = text.lstrip()[:1]
    if start not in ("{", "["):
        return curve_of_records(name, "csv", _csv_records(text))
    try:
        document = parse_json(text)
    except ValueError as error:
        return curve_of_records(name, "jsonl", _json_lines(name, text, error))
    if isinstance(document, dict) and not _has_lists(document) and "\n" not in text.strip():
        return curve_of_records(name, "jsonl", [document])
    curve = curve_of_records(name, "json", _json_records(name, document))
    if isinstance(document, dict):
        facts, scores = document.get("manifest"), document.get("evals")
        curve = replace(
            curve,
            facts=flattened(facts) if isinstance(facts, dict) else None,
            scores=scores_of(scores) if isinstance(scores, dict) else {},
        )
    return curve


def read_manifest_file(path: Path) -> tuple[dict[str, str], dict[str, float]]:
    """Facts and benchmark scores of a JSON file of free keys; scores are below the key `evals`.

    Raises:
        Fp8DebugError: it cannot be read.
        UsageError: it is no JSON object.
    """
    try:
        document = parse_json(read_text(path))
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON ({error}); expected an object of names and values") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected a JSON object of names and values, got a {type(document).__name__}")
    scores = document.pop("evals", {})
    return flattened(document), scores_of(scores) if isinstance(scores, dict) else {}


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        Fp8DebugError: it cannot be read.
    """
    try:
        return reading.read_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Fp8DebugError(f"cannot read {path}: {error}") from error


def flattened(document: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Nested names joined with dots, values as JSON texts; texts as they are."""
    facts: dict[str, str] = {}
    for key, value in document.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            facts |= flattened(value, f"{name}.")
        else:
            facts[name] = value if isinstance(value, str) else json.dumps(value)
    return facts


def scores_of(scores: Mapping[str, Any]) -> dict[str, float]:
    """Those that are numbers."""
    return {str(task): float(score) for task, score in scores.items() if isinstance(score, (int, float))}


def _csv_records(text: str) -> list[Record]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    delimiter = max(",\t;", key=lines[0].count) if lines else ","
    rows = csv.reader(lines, delimiter=delimiter)
    header = [name.strip() for name in next(rows, [])]
    return [dict(zip(header, row, strict=False)) for row in rows]


def _has_lists(document: Mapping[str, Any]) -> bool:
    return any(isinstance(value, (list, dict)) for value in document.values())


def _json_lines(name: str, text: str, error: ValueError) -> list[Record]:
    """One object a line; a last line that was cut is left out."""
    lines = [line for line in text.splitlines() if line.strip()]
    found: list[Record] = []
    for place, line in enumerate(lines):
        try:
            record = parse_json(line)
        except ValueError:
            if place == len(lines) - 1 and found:
                break
            raise UsageError(f"{name} is neither JSON nor JSON lines: {error}") from error
        if isinstance(record, dict):
            found.append(_flat_record(record))
    return found


def _json_records(name: str, document: Any) -> list[Record]:
    found = document
    if isinstance(document, dict):
        key = next((key for key in _LISTS if isinstance(document.get(key), (list, dict))), None)
        is_columns = "loss" in document or (key == "steps" and not _is_records(document["steps"]))
        found = document if key is None or is_columns else document[key]
    if isinstance(found, dict):
        found = _from_columns(found)
    if not _is_records(found):
        raise UsageError(
            f"{name} holds no curve; expected a list of objects with step and loss, or that list below "
            f"{', '.join(_LISTS[:2])}, or an object with one list a column"
        )
    return [_flat_record(record) for record in found]


def _is_records(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(record, dict) for record in found)


def _from_columns(columns: Mapping[str, Any]) -> list[Record]:
    lists: dict[str, Sequence[Any]] = {key: value for key, value in columns.items() if isinstance(value, list)}
    size = max(map(len, lists.values()), default=0)
    return [{key: values[place] for key, values in lists.items() if place < len(values)} for place in range(size)]


def _flat_record(record: Mapping[str, Any]) -> Record:
    """`{"train": {"loss": 2}}` as `{"train/loss": 2}`."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{below}": inner for below, inner in _flat_record(value).items()}
        else:
            flat[key] = value
    return flat
