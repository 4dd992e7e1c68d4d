"""Transformer Engine's recipes in our words."""

from __future__ import annotations

from typing import Any

from fp8debug.errors import Fp8DebugError
from fp8debug.formats import E2M1, E4M3, E5M2, ELEMENT_FORMATS, Format
from fp8debug.hooks.dtypes import WORDS
from fp8debug.recipes import CurrentScaling, DelayedScaling

_BY_CLASS = {
    "MXFP8BlockScaling": "mxfp8",
    "Float8BlockScaling": "block",
    "NVFP4BlockScaling": "nvfp4",
}


def delayed_recipe(recipe: Any) -> DelayedScaling | None:
    """A `DelayedScaling` as ours; None for other recipes, and where a user's own function computes amax or scale."""
    algorithm = getattr(recipe, "amax_compute_algo", None)
    if not isinstance(algorithm, str) or callable(getattr(recipe, "scaling_factor_compute_algo", None)):
        return None
    try:
        return DelayedScaling(
            amax_history_len=int(recipe.amax_history_len),
            amax_compute_algo=algorithm,
            margin=int(getattr(recipe, "margin", 0)),
            fp8_format=_format_word(recipe),
        )
    except Fp8DebugError:  # parameters that our recipe refuses: there is no text for it
        return None


def recipe_text(recipe: Any, quantizer: Any = None) -> str | None:
    """Text of the recipe that a tensor was quantised with; None when it has none here.

    Args:
        recipe: the framework's recipe object, as in `fp8_meta["recipe"]`.
        quantizer: what cast the tensor: it knows what a custom recipe has chosen.
    """
    name = type(recipe).__name__
    if name in _BY_CLASS:
        return _BY_CLASS[name]
    if name == "Float8CurrentScaling" or type(quantizer).__name__ == "Float8CurrentScalingQuantizer":
        return CurrentScaling(
            power_of_two=bool(getattr(quantizer, "force_pow_2_scales", False)),
            amax_epsilon=float(getattr(quantizer, "amax_epsilon", 0.0)),
            fp8_format=_format_word(recipe),
        ).text
    delayed = delayed_recipe(recipe)
    return None if delayed is None else delayed.text


def format_asked(recipe: Any, tensor: str) -> Format:
    """Format that the recipe has for x, w or dy."""
    if type(recipe).__name__ == "NVFP4BlockScaling":
        return E2M1
    word = _format_word(recipe)
    return (E5M2 if tensor == "dy" else E4M3) if word == "HYBRID" else ELEMENT_FORMATS[word]


def dtype_asked(recipe: Any, tensor: str) -> str:
    """That format as the columns have it."""
    return WORDS[format_asked(recipe, tensor).name]


def _format_word(recipe: Any) -> str:
    word = str(getattr(getattr(recipe, "fp8_format", None), "name", "HYBRID"))
    return word if word in ("E4M3", "E5M2") else "HYBRID"
