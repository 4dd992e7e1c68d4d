"""Which layers are taken: canonical names, regexes, and words for a pattern that matches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fp8debug.errors import UsageError, nearest

WRAPPER_SEGMENTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PREFIXES = "module., _orig_mod., _fsdp_wrapped_module. and _checkpoint_wrapped_module."


def canonical_name(raw_name: str) -> str:
    """Drop the path segments that wrappers (DDP, compile, FSDP, checkpointing) put into a module's name."""
    return ".".join(part for part in raw_name.split(".") if part not in WRAPPER_SEGMENTS)


def global_name(raw_name: str, numbers: Mapping[str, int]) -> str:
    """The name with the numbers that modules have in the whole model, where a pipeline stage counts its own from 0.

    Args:
        numbers: raw name of a module -> its number in the whole model.
    """
    parts = raw_name.split(".")
    return ".".join(str(numbers.get(".".join(parts[: i + 1]), part)) for i, part in enumerate(parts))


def compile_patterns(patterns: Iterable[str], option: str) -> tuple[re.Pattern[str], ...]:
    """Compile regexes for re.search.

    Raises:
        UsageError: one does not compile; the message says where.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(
                f"{option} '{pattern}' is not a regular expression: {error}; expected Python `re` syntax, "
                r"for example 'blocks\.[0-3]\.'"
            ) from error
    return tuple(compiled)


def matches_any(patterns: Iterable[re.Pattern[str]], name: str) -> bool:
    """Whether any of the patterns is found in the name."""
    return any(pattern.search(name) for pattern in patterns)


def unmatched(patterns: Iterable[re.Pattern[str]], names: Sequence[str]) -> list[str]:
    """Those of the patterns that are found in none of the names."""
    return [p.pattern for p in patterns if not any(p.search(name) for name in names)]


def explain_pattern(pattern: str, layers: Sequence[tuple[str, str]]) -> str:
    """Why a pattern matches none of `layers`, (name, raw name) each: it has a wrapper's prefix, or what is nearest."""
    for name, raw_name in layers:
        hit = next((other for other in (raw_name, *_wrapped(name)) if re.search(pattern, other)), None)
        if hit is not None:
            return f"it would match '{hit}', but names are told without {_PREFIXES}: '{name}'"
    names = [name for name, _ in layers]
    return f"nearest names: {', '.join(nearest(pattern, names) or names[:3])}"


def _wrapped(name: str) -> Iterator[str]:
    """The name with one wrapper's segment, at each place where a wrapper may stand."""
    parts = name.split(".")
    for at in range(len(parts)):
        for segment in sorted(WRAPPER_SEGMENTS):
            yield ".".join([*parts[:at], segment, *parts[at:]])


def one_or_more(given: str | Iterable[str]) -> tuple[str, ...]:
    """A text alone, or several: what scripts may give where the command line repeats an option."""
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True, slots=True)
class Selection:
    """A layer is taken when any of `layers` matches its name (or there is none) and none of `exclude` does."""

    layers: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def from_regexes(cls, layers: Sequence[str], exclude: Sequence[str]) -> Selection:
        """Compile both lists; raises UsageError for a regex that does not compile."""
        return cls(compile_patterns(layers, "--layers"), compile_patterns(exclude, "--exclude"))

    def takes(self, name: str) -> bool:
        """Whether the layer called `name` is taken."""
        return (not self.layers or matches_any(self.layers, name)) and not matches_any(self.exclude, name)

    def unmatched(self, names: Sequence[str]) -> list[str]:
        """Patterns of `layers` that match none of `names`."""
        return unmatched(self.layers, names)

    def unmatched_exclude(self, names: Sequence[str]) -> list[str]:
        """Patterns of `exclude` that match none of `names`."""
        return unmatched(self.exclude, names)

    def explain_no_exclusion(self, layers: Sequence[tuple[str, str]]) -> str | None:
        """One line for the user when none of several `exclude` patterns matches any of `layers`, (name, raw name) each.

        None when one does, and when there is no pattern or no layer.
        """
        missing = self.unmatched_exclude([name for name, _ in layers])
        if not layers or not missing or len(missing) < len(self.exclude):
            return None
        asked = ", ".join(f"'{pattern}'" for pattern in missing)
        return (
            f"--exclude {asked} matches none of the {len(layers)} GEMM layers, so nothing would be left out; "
            f"{explain_pattern(missing[0], layers)}; `--list-layers` prints them all"
        )

    def explain_no_match(self, names: Sequence[str]) -> str:
        """One line for the user: nothing matched, what was asked for, which names come nearest."""
        if not names:
            return "no GEMM layer found: the model has no nn.Linear, no Conv1D of GPT-2 and no layer of Megatron's"
        if not self.layers:
            return f"--exclude leaves none of the {len(names)} GEMM layers; loosen it (first layer: {names[0]})"
        asked = ", ".join(f"'{p.pattern}'" for p in self.layers)
        near = nearest(self.layers[0].pattern, names) or list(names[:3])
        return (
            f"--layers {asked} matches none of the {len(names)} GEMM layers (exclude applied); "
            f"nearest names: {', '.join(near)}; `--list-layers` prints them all"
        )
