"""What single records tell that nobody should have to look for: said once, as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8debug.hooks.backends.compiled import runs_in_graph
from fp8debug.hooks.dtypes import dtype_word
from fp8debug.hooks.measurement import Measurement
from fp8debug.hooks.observed import Observed
from fp8debug.hooks.recompute_watch import RecomputeWatch


class Noticed:
    """Looks at every record of a session, in order of observation."""

    def __init__(self) -> None:
        self._recompute = RecomputeWatch()
        self._nonfinite_told = False
        self._asked_low: dict[str, tuple[str, str]] = {}
        self._ran_low: set[str] = set()
        self._in_graph: set[str] = set()

    def look(self, taken: Measurement) -> Sequence[tuple[str, str]]:
        """Events about one record: (kind, message)."""
        if taken.counted is None and not taken.health.has_nonfinite:  # nearly every record
            return ()
        return [*self._look(taken)]

    def _look(self, taken: Measurement) -> Iterator[tuple[str, str]]:
        moment, row = taken.moment, taken.nonfinite_rows[1]
        if taken.health.has_nonfinite and moment.pass_ != "eval" and not self._nonfinite_told:
            self._nonfinite_told = True
            what = (
                f"{taken.health.n_nan or 0} NaN and {(taken.health.n_posinf or 0) + (taken.health.n_neginf or 0)} Inf"
            )
            yield (
                "nonfinite",
                f"the first in order of execution: step {moment.step}, micro-batch {moment.microbatch}, "
                f"{moment.pass_}, {taken.layer} {taken.tensor}"
                + (f", row {row}" if row is not None else "")
                + f": {what} values",
            )
        if taken.tensor != "x" or taken.counted is None or taken.is_payload:
            return
        if moment.pass_ == "forward":
            self._recompute.forward(taken.layer, moment, taken.counted.checksum)
        elif moment.pass_ == "recompute" and self._recompute.differs(taken.layer, moment, taken.counted.checksum):
            yield (
                "recompute_differs",
                f"at step {moment.step}, micro-batch {moment.microbatch}, the recomputed x is not bit for bit that of "
                "the forward: gradients belong to another forward than the loss (is the random state preserved?)",
            )

    def precision(self, seen: Observed, *, has_payload: bool) -> None:
        """Note what a layer was asked to run in, and whether it did."""
        if has_payload or seen.gemm_dtype.itemsize == 1:
            self._ran_low.add(seen.layer)
        elif seen.precision_asked is not None and seen.precision_asked.startswith("float8"):
            self._asked_low.setdefault(seen.layer, (seen.precision_asked, dtype_word(seen.gemm_dtype)))
            if runs_in_graph():
                self._in_graph.add(seen.layer)

    def precision_differs(self) -> dict[str, str]:
        """Layers that were asked to run in FP8 of which nothing in FP8 was seen, each with one sentence."""
        return {
            layer: f"asked to run in {asked}, but its GEMMs read {ran}: neither an FP8 operand nor an FP8 GEMM was seen"
            for layer, (asked, ran) in self._asked_low.items()
            if layer not in self._ran_low | self._in_graph
        }

    def hidden_in_graphs(self) -> list[str]:
        """Layers asked to run in FP8 whose GEMMs are inside a compiler's graph, where nothing in FP8 can be seen."""
        return sorted(self._in_graph - self._ran_low)
