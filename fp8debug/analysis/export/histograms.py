"""How the magnitudes of each operand are spread over octaves, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fp8debug.analysis.export.narrowing import Narrowing
from fp8debug.analysis.export.scalars import Operand
from fp8debug.analysis.run import Run


@dataclass(frozen=True, slots=True)
class Octaves:
    """The non-zero finite elements of one operand at one sampled step, all its records of that step together.

    An octave e holds the magnitudes in [2**e, 2**(e+1)).
    """

    step: int
    operand: Operand
    first: int
    """Exponent of the first octave."""
    counts: tuple[int, ...]
    """Elements of each octave from the first on; no zero at either end."""


_OCTAVES = """
with counted as (
    select step, layer, tensor, octave_of(value) as octave, sum(count)::bigint as n
    from {histograms}
    where is_judged_pass(pass) and value <> 0 and {condition}
    group by all
)
select step, layer, tensor, list(octave order by octave), list(n order by octave)
from counted
group by step, layer, tensor
order by step, layer, tensor
"""


def octaves(run: Run, narrowing: Narrowing | None = None) -> Iterator[Octaves]:
    """All of them, by rising step; over several ranks each piece of a tensor is counted once.

    Raises:
        UsageError: something is asked for that was not recorded.
    """
    condition = (narrowing or Narrowing()).condition(run, ("layer", "tensor", "step"))
    # Codes are values of their own scale: of records that hold them alone, nothing is known in high precision.
    histograms = "merged_histograms" if run.has_groups else "(from histograms where counted = 'high')"
    rows = run.sql(_OCTAVES.format(histograms=histograms, condition=condition))
    for step, layer, tensor, exponents, counts in rows.iter_rows():
        dense = [0] * (exponents[-1] - exponents[0] + 1)
        for exponent, count in zip(exponents, counts, strict=True):
            dense[exponent - exponents[0]] = count
        yield Octaves(step, Operand(layer, tensor), exponents[0], tuple(dense))
