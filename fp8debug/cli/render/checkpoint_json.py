"""The audit of a checkpoint as JSON: the fields of the records under their own names."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import numpy as np

from fp8debug import __version__
from fp8debug.analysis.checkpoint import AUDIT_VERSION, Audit, CodeFacts, Facts, PlainFacts, ScaleFacts
from fp8debug.cli.render.document import document_text


def checkpoint_json(audit: Audit) -> str:
    """One JSON object and a newline.

    `audit_version` rises when a key changes its meaning or goes; new keys may appear without. What is unknown, NaN or
    infinite is null. Numbers of single scales and codes are left out: their counts, extremes and medians are there.
    """
    document = {
        "audit_version": AUDIT_VERSION,
        "fp8debug_version": __version__,
        "path": audit.path,
        "headers_only": audit.headers_only,
        "n_errors": audit.n_errors,
        "n_findings": len(audit.findings),
        "findings": [{"message": one.message, **asdict(one)} for one in audit.findings],
        "comparisons": [asdict(comparison) for comparison in audit.comparisons],
        "three_way": None if audit.three_way is None else asdict(audit.three_way),
        "n_files": audit.n_files,
        "n_tensors": audit.n_tensors,
        "n_bytes": audit.n_bytes,
        "convention": asdict(audit.convention),
        "facts": _facts(audit.facts),
        "problems": list(audit.problems),
    }
    return document_text(document)


def _facts(facts: Facts) -> dict[str, Any]:
    return {
        "codes": {name: _scalars(one) for name, one in facts.codes.items()},
        "scales": {name: _scalars(one) for name, one in facts.scales.items()},
        "plain": {name: _scalars(one) for name, one in facts.plain.items()},
    }


def _scalars(record: CodeFacts | ScaleFacts | PlainFacts) -> dict[str, Any]:
    kept = {}
    for one in fields(record):
        value = getattr(record, one.name)
        if not isinstance(value, np.ndarray):
            kept[one.name] = asdict(value) if hasattr(value, "__dataclass_fields__") else value
    return kept
