"""Rows of a query as text: a table for people, CSV, JSON or JSON lines for programs."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fp8debug.cli.render.tables import display_width, escape, pad

Row = Sequence[Any]

_CELL_WIDTH = 60
"""Lists and the like are cut to this in a table; csv and json have them whole."""


@dataclass(frozen=True, slots=True)
class Result:
    """A query's answer: column names, which of them are numbers, and the rows, batch by batch."""

    columns: tuple[str, ...]
    is_number: tuple[bool, ...]
    batches: Iterable[Sequence[Row]]


def table_lines(result: Result) -> Iterator[str]:
    """Aligned text. Columns are as wide as the first batch needs; a later, wider cell shifts its line only."""
    header = [escape(name) for name in result.columns]
    widths: list[int] = []
    for batch in _at_least_one(result.batches):
        cells = [[_table_cell(value) for value in row] for row in batch]
        if not widths:
            widths = [max(display_width(row[i]) for row in [header, *cells]) for i in range(len(header))]
            yield _aligned(header, widths, result.is_number)
        for row in cells:
            yield _aligned(row, widths, result.is_number)


def csv_lines(result: Result) -> Iterator[str]:
    """RFC 4180 with line feeds: NULL is empty, an empty text is quoted, floats have all their digits."""
    yield ",".join(_csv_quoted(name) for name in result.columns)
    for batch in result.batches:
        for row in batch:
            yield ",".join(_csv_cell(value) for value in row)


def json_lines(result: Result) -> Iterator[str]:
    """One array with an object a line; NULL, NaN and infinities are null."""
    names = distinct(result.columns)
    line = "["
    for batch in result.batches:
        for row in batch:
            text = _object(names, row)
            yield line if line == "[" else line + ","
            line = text
    if line == "[":
        yield "[]"
    else:
        yield line
        yield "]"


def jsonl_lines(result: Result) -> Iterator[str]:
    """One object a line; values as in `json_lines`."""
    names = distinct(result.columns)
    for batch in result.batches:
        for row in batch:
            yield _object(names, row)


TEXT_FORMATS: dict[str, Callable[[Result], Iterator[str]]] = {
    "table": table_lines,
    "csv": csv_lines,
    "json": json_lines,
    "jsonl": jsonl_lines,
}


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, later ones of equal name numbered: a, a_1, a_2."""
    taken: set[str] = set()
    result = []
    for name in names:
        unique, number = name, 0
        while unique in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique)
        result.append(unique)
    return result


def _at_least_one(batches: Iterable[Sequence[Row]]) -> Iterator[Sequence[Row]]:
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        yield ()


def _aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (pad(cell, width, right=flag) for cell, width, flag in zip(cells, widths, right, strict=True))
    return "  ".join(padded).rstrip()


def _table_cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, (list, tuple, dict)):
        text = json.dumps(_plain(value, digits=6), ensure_ascii=False)
        return escape(text if len(text) <= _CELL_WIDTH else text[: _CELL_WIDTH - 3] + "...")
    return escape(str(_plain(value)))


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple, dict)):
        return _csv_quoted(json.dumps(_plain(value), ensure_ascii=False))
    return _csv_quoted(value if isinstance(value, str) else str(_plain(value)))


def _csv_quoted(text: str) -> str:
    if text == "" or any(c in text for c in '",\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _object(names: Sequence[str], row: Row) -> str:
    return json.dumps(dict(zip(names, map(_plain, row), strict=True)), allow_nan=False)


def _plain(value: Any, digits: int | None = None) -> Any:
    """What JSON has words for."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, digits) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, digits) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
