"""From a run to findings: what is wrong, where, since when, and how it is known."""

from __future__ import annotations

from fp8debug.analysis.diagnosis.diagnose import diagnose
from fp8debug.analysis.diagnosis.finding import Evidence, Finding, Place
from fp8debug.analysis.diagnosis.rule import Parameter, Rule
from fp8debug.analysis.diagnosis.rulebook import RuleBook, load_rules

__all__ = ["Evidence", "Finding", "Parameter", "Place", "Rule", "RuleBook", "diagnose", "load_rules"]
