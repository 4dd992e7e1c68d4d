"""Which recipe the GEMMs of a run really computed with, if any."""

from __future__ import annotations

from collections import Counter

from fp8debug.analysis.run import Run
from fp8debug.errors import UsageError
from fp8debug.recipes import BF16, Recipe, parse_recipe

_FRAMEWORK = """
select recipe, count(*) as n
from (
    select recipe from stored.errors where source in ('framework', 'payload') and recipe is not null
    union all
    select recipe from stored.scales where source = 'framework' and recipe is not null
)
group by recipe
order by n desc, recipe
"""


def recipe_in_use(run: Run) -> Recipe | None:
    """The framework's recipe where it ran in low precision, else the emulated one; None: the run was in BF16.

    Of several, the one with the most records, or layers.
    """
    texts = [recipe for recipe, _ in run.sql(_FRAMEWORK).fetchall()]
    emulated = Counter(info.emulated.partition(", ")[0] for info in run.manifest.layers if info.emulated)
    for text in (*texts, *(text for text, _ in emulated.most_common())):
        try:
            recipe = parse_recipe(text)
        except UsageError:
            continue
        if not isinstance(recipe, BF16):
            return recipe
    return None
