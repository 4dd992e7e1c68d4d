"""What was assumed while a checkpoint was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fp8debug.analysis.checkpoint.records import Assumption


@dataclass(slots=True)
class Notes:
    """Assumptions, each with the tensors it was made for."""

    names: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, subject: str, message: str, name: str = "") -> None:
        """Remember that something was assumed, of a tensor or (no name) of all."""
        self.names.setdefault((subject, message), []).append(name)

    def assumptions(self) -> tuple[Assumption, ...]:
        """One for each thing that was assumed."""
        return tuple(Assumption(subject, message + _of(on)) for (subject, message), on in self.names.items())


def _of(names: Sequence[str]) -> str:
    if names == [""]:
        return ""
    return f" ({names[0]})" if len(names) == 1 else f" ({len(names):,} tensors; {names[0]} is the first)"
