"""What can be set for a capture, and where a setting comes from."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_RECIPES = ("current", "delayed")
KNOWN_TENSORS = ("x", "w", "dy", "y", "dx", "dw")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Settings of one capture, after precedence was applied."""

    layers: tuple[str, ...] = ()
    """Regexes (re.search on the qualified name); a layer is taken when any matches, or when there is none."""
    exclude: tuple[str, ...] = ()
    """Regexes; a layer that matches any is left out."""
    tensors: tuple[str, ...] = ("x", "w", "dy")
    every: int = 50
    """Sample (errors, histograms) each step divisible by this."""
    first: int = 0
    """Sample also the first this many steps."""
    steps: str | None = None
    """Ranges such as '0-9,100,200-'; when given, these steps are sampled instead of `every`."""
    raw_every: int = 0
    """Dump raw values each step divisible by this; 0: never."""
    recipes: tuple[str, ...] = DEFAULT_RECIPES
    rolls: str = "microbatch"
    """When a simulated delayed history advances: microbatch | step."""
    out: str | None = None
    name: str | None = None
    force: bool = False
    list_layers: bool = False
    quiet: bool = False
