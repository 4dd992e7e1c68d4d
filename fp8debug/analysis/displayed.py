"""What a notebook displays by itself."""

from __future__ import annotations

from importlib import import_module


class Displayed:
    """Has an HTML form, which `fp8debug.analysis.notebook` makes.

    That module knows all records that are displayed, and none of them knows it: it is found by its name, when a
    notebook asks.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        text: str = import_module(f"{__package__}.notebook").html_of(self)
        return text
