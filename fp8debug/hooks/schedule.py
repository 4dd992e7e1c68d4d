"""Which steps are sampled (errors and histograms) and which are dumped raw."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fp8debug.config import CaptureOptions
from fp8debug.errors import UsageError

_RANGE = re.compile(r"\s*(\d+)\s*(?:(-)\s*(\d+)?)?\s*")


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps from `first` to `last`, both included; `last` None: to the end."""

    first: int
    last: int | None

    def __contains__(self, step: int) -> bool:
        return step >= self.first and (self.last is None or step <= self.last)


def parse_steps(text: str) -> tuple[StepRange, ...]:
    """Parse '0-9,100,200-'.

    Raises:
        UsageError: not of that form, or a range that runs backwards.
    """
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(f"--steps {text!r}: got {part!r}, expected steps and ranges such as 0-9,100,200-")
        first, dash, last = int(match[1]), match[2], match[3]
        end = int(last) if last else (None if dash else first)
        if end is not None and end < first:
            raise UsageError(f"--steps {text!r}: the range {part.strip()!r} runs backwards")
        ranges.append(StepRange(first, end))
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sampling plan of a capture."""

    every: int
    first: int
    ranges: tuple[StepRange, ...] | None
    raw_every: int
    keep: int = 1
    """Of the steps that these say, one in so many is taken; 0: none."""

    @classmethod
    def from_options(cls, options: CaptureOptions) -> Schedule:
        """Check and take the four options.

        Raises:
            UsageError: a negative period, or `steps` of the wrong form.
        """
        if options.every < 1:
            raise UsageError(f"--every {options.every}: expected a period of at least 1 step")
        if options.first < 0 or options.raw_every < 0:
            raise UsageError(f"--first {options.first}, --raw-every {options.raw_every}: expected 0 or more")
        ranges = parse_steps(options.steps) if options.steps is not None else None
        return cls(options.every, options.first, ranges, options.raw_every)

    def sampled(self, step: int) -> bool:
        """Whether errors and histograms are taken in `step`."""
        if not self.keep:
            return False
        if step < self.first:
            return step % self.keep == 0
        if self.ranges is not None:
            return any(step in steps and (step - steps.first) % self.keep == 0 for steps in self.ranges)
        return step % (self.every * self.keep) == 0

    def raw(self, step: int) -> bool:
        """Whether raw values are dumped in `step`."""
        period = self.raw_every * self.keep
        return period > 0 and step % period == 0
