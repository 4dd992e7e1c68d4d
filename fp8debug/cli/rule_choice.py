"""The rules and numbers that a verb diagnoses with: command line over configuration file over what is shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp8debug.errors import UsageError
from fp8debug.settings import RuleSettings, load_rule_settings

if TYPE_CHECKING:
    from fp8debug.analysis.diagnosis import RuleBook


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """What the user says of rules."""

    settings: RuleSettings
    thresholds: dict[str, float]
    """For `open_run`: those of `--threshold`, then those of the file."""

    def rules(self) -> RuleBook:
        """For `diagnose` and `build_report`.

        Raises:
            UsageError: a rule file that is none, a rule or parameter that there is not.
        """
        from fp8debug.analysis.diagnosis import load_rules

        return load_rules(self.settings)


def rule_choice(config: str | None = None, given: Sequence[str] = ()) -> RuleChoice:
    """Read what the user says of rules.

    Args:
        config: a configuration file; None: the nearest.
        given: `NAME=VALUE`, as of `--threshold`.

    Raises:
        UsageError: a file that cannot be read, or a threshold that there is not.
    """
    settings = load_rule_settings(config)
    if settings.thresholds:
        from fp8debug.analysis.thresholds import resolve

        try:
            resolve(settings.thresholds)
        except UsageError as error:
            raise UsageError(f"{settings.source}: {error}") from error
    return RuleChoice(settings, {**settings.thresholds, **_parsed(given)})


def _parsed(items: Sequence[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for item in items:
        name, _, word = item.partition("=")
        try:
            values[name.strip()] = float(word)
        except ValueError:
            raise UsageError(f"--threshold {item!r}: expected NAME=VALUE, for example gap_bits=1.5") from None
    return values
