"""What was seen while logs were read: counted, with the first few examples of what could not be used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fp8debug.analysis.importing.names import GivenName
from fp8debug.analysis.importing.te_log import Number, Unread

MOST_EXAMPLES = 3


class Kind(NamedTuple):
    """Numbers that mean the same."""

    statistic: str
    recipe: str | None
    columnwise: bool


@dataclass(slots=True)
class Seen:
    """How often what was seen of a kind."""

    n: int = 0
    n_at_floor: int = 0
    n_nan: int = 0
    n_inf: int = 0
    n_negative: int = 0
    n_code_like: int = 0
    """Whole numbers from 2 to 254, as codes of exponents are."""


class Place(NamedTuple):
    """A line of a file."""

    path: Path
    line: int
    text: str


class Restart(NamedTuple):
    """Where the iteration goes back."""

    rank: int
    place: Place
    last_step: int
    step: int


@dataclass(slots=True)
class Tally:
    """Everything that is told of an import."""

    numbers: dict[Kind, Seen] = field(default_factory=dict)
    layers: dict[str, None] = field(default_factory=dict)
    """In the order of the log."""
    tensors: set[str] = field(default_factory=set)
    starts: dict[int, tuple[str | None, int]] = field(default_factory=dict)
    """By segment: time of the first line, where lines have one, and its step."""
    restarts: list[Restart] = field(default_factory=list)
    unread: dict[str, list[Place]] = field(default_factory=dict)
    """By reason: the first few lines."""
    n_unread: Counter[str] = field(default_factory=Counter)
    n_repeated: int = 0
    """Lines that say again what a line of the same file, step and name says."""
    n_alike: int = 0
    """Numbers that a lower rank gives too."""
    n_differing: int = 0
    """Numbers of which a lower rank gives another."""
    n_uses: int = 0
    """Numbers given beside another of the same name and step, in one file."""
    steps: set[int] = field(default_factory=set)
    empty: list[Path] = field(default_factory=list)
    """Files without a line."""

    @property
    def n_numbers(self) -> int:
        """Numbers that are kept."""
        return sum(seen.n for seen in self.numbers.values())

    def add_operand(self, layer: str, tensor: str, *, n_uses: int) -> None:
        """One record, and how many of its numbers stand beside others."""
        self.layers.setdefault(layer)
        self.tensors.add(tensor)
        self.n_uses += n_uses

    def add_number(self, name: GivenName, value: float, *, at_floor: bool) -> None:
        """One number that is kept, in the log's unit."""
        kind = Kind(name.statistic, name.recipe, name.columnwise)
        seen = self.numbers.get(kind)
        if seen is None:
            seen = self.numbers[kind] = Seen()
        seen.n += 1
        seen.n_at_floor += at_floor
        if math.isnan(value):
            seen.n_nan += 1
        elif math.isinf(value):
            seen.n_inf += 1
        else:
            seen.n_negative += value < 0
            seen.n_code_like += 2 <= value <= 254 and value.is_integer()

    def add_unread(self, path: Path, line: Unread) -> None:
        """One line that gives no number."""
        self.n_unread[line.reason] += 1
        examples = self.unread.setdefault(line.reason, [])
        if len(examples) < MOST_EXAMPLES:
            examples.append(Place(path, line.line, line.text[:200]))

    def add_start(self, segment: int, line: Number) -> None:
        """The first line of a step; that of a segment's first one is kept."""
        if segment not in self.starts:
            self.starts[segment] = line.time, line.step

    def add_restart(self, rank: int, path: Path, line: Number, last_step: int) -> None:
        """The line at which a training was started again."""
        self.restarts.append(Restart(rank, Place(path, line.line, ""), last_step, line.step))

    def kinds(self, *statistics: str) -> Iterator[tuple[Kind, Seen]]:
        """Those of some statistics."""
        return ((kind, seen) for kind, seen in self.numbers.items() if kind.statistic in statistics)
