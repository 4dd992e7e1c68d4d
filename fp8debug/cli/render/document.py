"""What a program reads: one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def document_text(document: Mapping[str, Any]) -> str:
    """One JSON object and a newline, with null for every NaN and infinity, which JSON has no words for."""
    return json.dumps(without_nan(document), indent=1, allow_nan=False) + "\n"


def without_nan(value: Any) -> Any:
    """The same with None for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return value
