"""A curve out of the records of a log: rows of a CSV file, objects of a JSON file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.compare.columns import SPELLINGS, Columns, find_columns
from fp8debug.analysis.compare.curve import Curve, Floats, Steps, last_of_each
from fp8debug.errors import UsageError, nearest, some

Record = Mapping[str, Any]
_STEPS_END = 2.0**53
"""From here on a float no longer tells two whole numbers apart."""
_BLANK = frozenset({"", "none", "null", "n/a", "na", "-"})


@dataclass(frozen=True, slots=True)
class _Row:
    step: int
    loss: float
    record: Record


def curve_of_records(name: str, kind: str, records: Sequence[Record]) -> Curve:
    """Read a curve; a record without a loss is another kind of record, such as one of a validation.

    Raises:
        UsageError: no rows, no column that could be a loss, or a step that is no whole number.
    """
    if not records:
        raise UsageError(f"{name} has no rows; expected one a step, with columns step and loss")
    names = list(dict.fromkeys(key for record in records for key in record))
    columns = find_columns(names)
    if columns.loss is None:
        raise _no_loss(name, names)
    notes: list[str] = []
    rows = _rows(name, records, columns, notes)
    if not rows:
        raise UsageError(f"{name}: column {columns.loss!r} holds no loss; expected one number a step")
    steps: Steps = np.array([row.step for row in rows], dtype=np.int64)
    order = last_of_each(steps)
    if order.size < steps.size:
        notes.append(f"{steps.size - order.size} steps come more than once: the last entry counts")
    kept = [rows[place] for place in order]
    steps = steps[order]
    return Curve(
        name,
        steps,
        np.array([row.loss for row in kept]),
        _column(kept, columns.grad_norm),
        _given(kept, columns.grad_norm),
        _column(kept, columns.lr),
        _tokens(kept, steps, columns, notes),
        kind=kind,
        taken=columns.taken,
        notes=tuple(notes),
    )


def _rows(name: str, records: Sequence[Record], columns: Columns, notes: list[str]) -> list[_Row]:
    assert columns.loss is not None
    if columns.step is None:
        notes.append("no column of steps: records are numbered from 0")
    rows: list[_Row] = []
    blank: list[_Row] = []
    known = {columns.step, columns.loss, columns.grad_norm, columns.lr, columns.tokens, columns.total_tokens}
    for place, record in enumerate(records):
        loss = _number(record.get(columns.loss))
        step = place if columns.step is None else _step(name, columns.step, record.get(columns.step))
        if step is None:
            continue
        if loss is not None:
            # A blank between two losses is a record of something else, unless it says what a training step says.
            rows += [row for row in blank if _says_more(row.record, columns)]
            blank = []
            rows.append(_Row(step, loss, record))
        elif columns.loss in record and not any(_number(record[key]) is not None for key in record if key not in known):
            blank.append(_Row(step, math.nan, record))
    rows += blank
    given = {row.step for row in rows if not math.isnan(row.loss)}
    found = [row for row in rows if not (row.step in given and math.isnan(row.loss) and _is_blank(row, columns.loss))]
    n_blank = sum(_is_blank(row, columns.loss) for row in found)
    if found and n_blank == len(found) and (text := _no_number(records, columns.loss)) is not None:
        raise UsageError(f"{name}: column {columns.loss!r} holds no number, but {text!r}; expected a loss such as 2.71")
    if n_blank:
        notes.append(f"{n_blank} blank losses are taken as NaN")
    return found


def _no_number(records: Sequence[Record], column: str) -> str | None:
    """A text of the column that is neither a number nor blank."""
    texts = (str(value).strip() for record in records if (value := record.get(column)) is not None)
    return next((text for text in texts if text.lower() not in _BLANK and _number(text) is None), None)


def _is_blank(row: _Row, column: str) -> bool:
    return _number(row.record.get(column)) is None


def _says_more(record: Record, columns: Columns) -> bool:
    names = (columns.grad_norm, columns.lr, columns.tokens)
    return any(name is not None and _number(record.get(name)) is not None for name in names)


def _step(name: str, column: str, value: Any) -> int | None:
    number = _number(value)
    if number is None:
        return None
    if not math.isfinite(number) or number != int(number) or abs(number) >= _STEPS_END:
        raise UsageError(f"{name}: got {value!r} in column {column!r}; expected whole steps")
    return int(number)


def _number(value: Any) -> float | None:
    """A float, NaN and infinities included; None where nothing is given.

    A text that is no number counts as nothing: logs hold remarks.
    """
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return _as_float(value)
    text = str(value).strip().lower()
    if text in _BLANK:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # JSON's whole numbers have no end
        return math.inf if value > 0 else -math.inf


def _column(rows: Sequence[_Row], name: str | None) -> Floats | None:
    if name is None:
        return None
    numbers = [_number(row.record.get(name)) for row in rows]
    if all(number is None for number in numbers):
        return None
    return np.array([math.nan if number is None else number for number in numbers])


def _given(rows: Sequence[_Row], name: str | None) -> npt.NDArray[np.bool_] | None:
    """Where there is a number, or nothing beside a loss of NaN: exporters write both as a blank."""
    if name is None:
        return None
    return np.array([_number(row.record.get(name)) is not None or not math.isfinite(row.loss) for row in rows])


def _tokens(rows: Sequence[_Row], steps: Steps, columns: Columns, notes: list[str]) -> Floats | None:
    """Tokens a step; a running sum is taken apart."""
    each, total = _column(rows, columns.tokens), _column(rows, columns.total_tokens)
    if each is None or _is_running_sum(each):
        total = each if each is not None else total
        if total is None or total.size < 2:
            return None
        notes.append("tokens are a running sum: the difference of neighbours counts")
        each = np.concatenate([[math.nan], np.diff(total) / np.diff(steps)])
    return each


def _is_running_sum(tokens: Floats) -> bool:
    return tokens.size > 2 and bool((np.diff(tokens) > 0).all()) and tokens[-1] > tokens[0] * tokens.size / 2


def _no_loss(name: str, names: Sequence[str]) -> UsageError:
    near = nearest("loss", names)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return UsageError(
        f"{name} has no column that is read as the training loss: it has {some(names)}"
        f"{hint}; "
        f"expected step and loss (also {', '.join(SPELLINGS['loss'][1:4])} or train/loss)"
    )
