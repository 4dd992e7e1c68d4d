"""Which layer and which tensors a person means."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fp8debug.analysis.run import Run
from fp8debug.config import KNOWN_TENSORS, BadValue, parse_tensors
from fp8debug.errors import Fp8DebugError, UsageError, escape, nearest

_SHOWN = 5
_LAYERS = "select distinct layer from stored.tensors order by layer"


def layer_named(run: Run, text: str) -> str:
    """The recorded layer of that name, else the only one in which the regex `text` is found.

    Raises:
        UsageError: none or several; the nearest names are said.
        Fp8DebugError: nothing was recorded.
    """
    names: list[str] = [row[0] for row in run.prepare("").execute(_LAYERS).fetchall()]
    if not names:
        raise Fp8DebugError(f"no tensor was recorded in {run.path}; record a run with `fp8debug attach train.py`")
    if text in names:
        return text
    try:
        found = [name for name in names if re.search(text, name)]
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"layer {text!r} was not recorded and is no regular expression: {error}; {_near(text, names)}"
        ) from error
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"layer {text!r} matches none of the {len(names)} recorded layers; {_near(text, names)}")
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    shown = ", ".join(map(escape, found[:_SHOWN]))
    raise UsageError(f"layer {text!r} matches {len(found)} recorded layers: {shown}{more}; name one of them")


def tensors_named(run: Run, layer: str, words: str | None) -> tuple[str, ...]:
    """The tensors that `words` mean, such as `x`, `gradient` or `x,w`; None: all that were recorded of the layer.

    Raises:
        UsageError: no tensor, or one that was not recorded.
    """
    rows = run.sql("select distinct tensor from stored.tensors where layer = $layer", layer=layer).fetchall()
    known = tuple(tensor for tensor in KNOWN_TENSORS if (tensor,) in rows)
    if words is None:
        return known
    try:
        wanted = parse_tensors(words)
    except BadValue as error:
        raise UsageError(f"TENSOR: got {words!r}; expected {error}") from error
    missing = [tensor for tensor in wanted if tensor not in known]
    if missing:
        asked = ",".join(tensor for tensor in KNOWN_TENSORS if tensor in (*known, *missing))
        raise UsageError(
            f"{missing[0]} of {escape(layer)} was not recorded; this run has its {', '.join(known)}; record it with "
            f"`fp8debug attach --tensors {asked} ...`"
        )
    return wanted


def _near(text: str, names: Sequence[str]) -> str:
    return f"nearest names: {', '.join(map(escape, nearest(text, names) or names[:3]))}"
