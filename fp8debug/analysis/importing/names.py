"""Names of numbers in Transformer Engine's debug logs: `<layer>_<tensor>_[<recipe>_]<statistic>[_columnwise]`.

All of it is one flat text, and layers have underscores and dots. No statistic of Transformer Engine has a tensor's word
in it, so the last such word that stands between underscores is the tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

TENSORS = {"activation": "x", "weight": "w", "gradient": "dy", "output": "y", "dgrad": "dx", "wgrad": "dw"}
"""Transformer Engine's word -> ours."""
_RECIPES = {
    "fp8_delayed_scaling": "delayed",
    "fp8_current_scaling": "current",
    "fp8_block_scaling": "block",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
_FORMATS = {"nvfp4": "E2M1"}
"""Kinds of recipes that have one element format alone."""
_STATISTICS = {"cur_amax": "amax", "underflows%": "underflow_all", "overflows%": "overflow"}
"""Where our word is another one; every other statistic is called the same."""
_BLOCKWISE = re.compile(r"max_blockwise_dynamic_range_block_size_\d+_dims_\d+(_max_over_orientations)?")
_COLUMNWISE = "_columnwise"


@dataclass(frozen=True, slots=True, eq=False)
class GivenName:
    """What the name of a number says. Equal texts are equal names: there are millions of them to look up."""

    text: str
    layer: str
    tensor: str
    """Our word: x | w | dy | y | dx | dw."""
    statistic: str
    """Our word where the meaning is the same, else the log's."""
    recipe: str | None
    fmt: str | None
    columnwise: bool
    given_name: str
    """The log's name of the statistic, recipe included."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GivenName) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_share(self) -> bool:
        """Whether the log gives it in percent."""
        return self.statistic in ("underflow_all", "overflow")

    @property
    def is_code(self) -> bool:
        """Whether it is the code of an exponent, a whole number, in place of a factor."""
        return self.recipe == "mxfp8" and self.statistic.startswith("scale_inv")


@lru_cache(maxsize=1 << 16)
def split_name(text: str) -> GivenName | None:
    """Take a name apart; None when it has no layer, or no tensor of Transformer Engine before a statistic."""
    at, word = max((text.rfind(f"_{word}_"), word) for word in TENSORS)
    given = text[at + len(word) + 2 :]
    if at < 1 or not given:
        return None
    core = given.removesuffix(_COLUMNWISE)
    known = next((prefix for prefix in _RECIPES if core.startswith(f"{prefix}_")), None)
    core = core if known is None else core[len(known) + 1 :]
    recipe = None if known is None else _RECIPES[known]
    return GivenName(
        text=text,
        layer=text[:at],
        tensor=TENSORS[word],
        statistic="max_blockwise_dynamic_range" if _BLOCKWISE.fullmatch(core) else _STATISTICS.get(core, core),
        recipe=recipe,
        fmt=None if recipe is None else _FORMATS.get(recipe),
        columnwise=given.endswith(_COLUMNWISE),
        given_name=given,
    )
