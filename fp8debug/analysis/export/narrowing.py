"""Which rows of a view are wanted: conditions on the columns that it has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fp8debug.analysis.parts import quote_texts
from fp8debug.analysis.run import Run
from fp8debug.analysis.scope import matching_layers, recipe_condition, steps_condition
from fp8debug.errors import UsageError

StepRanges = Sequence[tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is wanted of a run; an empty field leaves nothing out. Rows are left out, nothing is computed anew."""

    layer: str = ""
    """Regex for re.search on the layer's name."""
    tensors: tuple[str, ...] = ()
    steps: StepRanges = ()
    """Ranges (first, last), both included; last None: to the end."""
    recipes: tuple[str, ...] = ()
    """Recipes as the run names them, or only their kind, such as `delayed`."""

    @property
    def asked(self) -> tuple[str, ...]:
        """Columns that it narrows."""
        given = {"layer": self.layer, "tensor": self.tensors, "step": self.steps, "recipe": self.recipes}
        return tuple(column for column, value in given.items() if value)

    def condition(self, run: Run, columns: Collection[str]) -> str:
        """An SQL condition on those of `columns` that it narrows; `true` when it narrows none.

        Raises:
            UsageError: a regex that does not compile, or a layer, tensor, step or recipe that was not recorded.
        """
        return " and ".join(self._conditions(run, columns)) or "true"

    def _conditions(self, run: Run, columns: Collection[str]) -> Iterator[str]:
        con = run.prepare("")
        wanted = [column for column in self.asked if column in columns]
        if "layer" in wanted:
            yield f"layer in ({quote_texts(matching_layers(con, self.layer, run.manifest))})"
        if "tensor" in wanted:
            yield f"tensor in ({quote_texts(_recorded(run, self.tensors))})"
        if "step" in wanted:
            yield steps_condition(con, self.steps)
        if "recipe" in wanted:
            yield recipe_condition(con, self.recipes, run.manifest)


def _recorded(run: Run, tensors: Sequence[str]) -> Sequence[str]:
    known = [row[0] for row in run.sql("select distinct tensor from stored.tensors order by tensor").fetchall()]
    missing = [tensor for tensor in tensors if tensor not in known]
    if missing:
        raise UsageError(f"{', '.join(missing)} was not recorded; this run has {', '.join(known) or 'no tensor'}")
    return tensors
