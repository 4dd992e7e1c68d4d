"""Entries of the exclusion list that no module has: misspelt, or written with another prefix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import ending_of, module_of, starred, wrappers_of
from fp8debug.analysis.checkpoint.checks.patterns import Pattern, PatternList
from fp8debug.analysis.checkpoint.checks.stored_as import matrices, one_of_all_experts
from fp8debug.analysis.checkpoint.records import CheckPlace
from fp8debug.errors import some

_ALIKE = 0.8
_HEADS = ("lm_head", "output", "output_layer", "embed_out", "head")
"""Heads that share the weights of the embedding are excluded and not in the file."""
_PREFIXES = ("", "model.", "language_model.", "language_model.model.", "model.language_model.")


def unmatched(subject: Subject) -> Iterator[Hit]:
    """Entries that match nothing, with the names that they may have meant."""
    convention = subject.convention
    patterns = PatternList(convention.excluded, convention.dialect)
    names = _names(subject)
    modules = matrices(subject)
    patterns.prepare(names)
    has_head = any(ending_of(one.module) in _HEADS for one in modules)
    matched = _matched(patterns, names, {one.module for one in modules})
    elsewhere: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    nowhere: dict[str, list[Pattern]] = defaultdict(list)
    by_rest = {wrappers_of(name)[1]: name for name in reversed(names)}
    for pattern in patterns.all:
        is_tied_head = ending_of(pattern.text) in _HEADS and not has_head
        if pattern.is_class or pattern.text in matched or is_tied_head:
            continue
        if (found := _with_another_prefix(pattern, by_rest)) is not None:
            prefix, name = found
            elsewhere[prefix, wrappers_of(name)[0]].append((pattern.text, name))
        elif pattern.is_broken or pattern.is_endless:
            yield _not_tried(pattern)
        elif pattern.is_name and (near := _near(pattern, by_rest)):
            yield _misspelt(pattern, near)
        elif not any(map(pattern.how, names)):
            nowhere[starred(pattern.text)[0]].append(pattern)
    yield from map(_nothing, nowhere.values())
    dtypes = {one.module: one.dtype for one in modules}
    for (prefix, other), pairs in elsewhere.items():
        yield _other_prefix(prefix, other, pairs, dtypes)


def _names(subject: Subject) -> list[str]:
    """Tensors, what holds them, and what holds that; of the experts of a layer the first alone."""
    kept = {one.module: None for one in one_of_all_experts(matrices(subject))}
    # Vectors too: norms are listed often.
    kept |= {name: None for name in subject.convention.plain if ".experts." not in name}
    names = dict.fromkeys(kept)
    for name in kept:
        while name := module_of(name):
            names[name] = None
    return list(names)


def _matched(patterns: PatternList, names: list[str], modules: set[str]) -> set[str]:
    # An entry that names a group is no mistake, although some readers look at single layers alone.
    found = {one.text for one in patterns.all if one.is_name} & (modules | set(names))
    return found | {one.text for one in patterns.all if one.text not in found and _matches_any(one, names)}


def _matches_any(pattern: Pattern, names: list[str]) -> bool:
    # `model.layers` is in `language_model.layers` for those alone who look for texts: that begins otherwise.
    begins = f".{pattern.text}"
    return any(
        how == "whole" or (how == "part" and begins in f".{name}") for name in names if (how := pattern.how(name))
    )


def _with_another_prefix(pattern: Pattern, by_rest: Mapping[str, str]) -> tuple[str, str] | None:
    """The prefix that it is written with, and the name in the file that it would match with another."""
    if pattern.is_name:
        prefix, rest = wrappers_of(pattern.text)
        return (prefix, by_rest[rest]) if rest in by_rest else None
    pattern.prepare(prefix + rest for rest in by_rest for prefix in _PREFIXES)
    for rest, name in by_rest.items():
        for prefix in _PREFIXES:
            if pattern.how(prefix + rest) == "whole":
                return prefix, name
    return None


def _other_prefix(prefix: str, other: str, pairs: list[tuple[str, str]], dtypes: Mapping[str, str]) -> Hit:
    text, name = pairs[0]
    n = f"{len(pairs):,} entries match" if len(pairs) > 1 else f"`{text}` matches"
    stored = sorted({dtypes[name] for _, name in pairs if name in dtypes})
    dtype = f", which the file has in {' and '.join(stored)}" if stored else ""
    return Hit(
        "pattern_with_other_prefix",
        CheckPlace(
            name,
            f"{n} nothing: they are written for names that begin with `{prefix}`, the file's begin with `{other}`. "
            f"`{text}` would be {name}{dtype}; a reader that compares names takes it as quantised.",
            numbers={"pattern": text, "n": len(pairs), "prefix": prefix, "file_prefix": other},
        ),
        weight=len(pairs),
    )


def _not_tried(pattern: Pattern) -> Hit:
    what = (
        "is no regular expression that compiles; readers stop there, or ignore it"
        if pattern.is_broken
        else "was not tried: a regular expression like it may take for ever"
    )
    return Hit("pattern_matches_nothing", CheckPlace(pattern.text, f"{pattern.shown} {what}."), severity="warning")


def _misspelt(pattern: Pattern, near: list[str]) -> Hit:
    message = f"{pattern.shown} matches no tensor of the checkpoint; nearest: {some(near)}."
    return Hit("pattern_matches_nothing", CheckPlace(pattern.text, message), severity="warning")


def _nothing(alike: list[Pattern]) -> Hit:
    more = f" and {len(alike) - 1:,} like it match" if len(alike) > 1 else " matches"
    message = f"{alike[0].shown}{more} no tensor of the checkpoint."
    return Hit("pattern_matches_nothing", CheckPlace(alike[0].text, message, numbers={"n": len(alike)}))


def _near(pattern: Pattern, by_rest: Mapping[str, str]) -> list[str]:
    """Names that differ in the spelling of their last word."""
    rest = wrappers_of(pattern.text)[1]
    holder, last = module_of(rest), ending_of(rest)
    alike = [
        (SequenceMatcher(None, last, ending_of(other)).ratio(), name)
        for other, name in by_rest.items()
        if module_of(other) == holder and not last.isdecimal()
    ]
    return [name for ratio, name in sorted(alike, key=lambda pair: -pair[0]) if ratio >= _ALIKE]
