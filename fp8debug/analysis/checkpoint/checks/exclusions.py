"""What the configuration says of every layer, what the file says, and what ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import module_of, starred
from fp8debug.analysis.checkpoint.checks.patterns import Pattern, PatternList
from fp8debug.analysis.checkpoint.checks.stored_as import StoredAs, matrices, one_of_all_experts
from fp8debug.analysis.checkpoint.records import CheckPlace

_FEWEST_SIBLINGS = 2
_HIGH = "high precision"
_BUILT_FROM_CONFIGURATION = ("deepseek", "fp8", "compressed-tensors", "modelopt", "quark")
"""Dialects whose readers decide by the configuration which layers are quantised; others look at the tensors."""


def exclusions(subject: Subject) -> Iterator[Hit]:
    """Layers of which configuration, file and run do not say the same."""
    modules = matrices(subject)
    dialect = subject.convention.dialect
    excluded = PatternList(subject.convention.excluded, dialect)
    excluded.prepare(one.module for one in modules)
    by_pattern = {one.module: excluded.whole(one.module) for one in modules} if excluded else {}
    yield from _stored_as_codes(modules, by_pattern)
    yield from _not_quantised(subject, modules, by_pattern)
    yield from _meant_for_others(modules, excluded, by_pattern)
    yield from _ran_otherwise(subject, modules)


def _stored_as_codes(modules: Sequence[StoredAs], by_pattern: Mapping[str, Pattern | None]) -> Iterator[Hit]:
    for one in modules:
        pattern = by_pattern.get(one.module)
        if one.is_codes and pattern is not None:
            yield Hit("excluded_but_codes", _place(one, f"{_HIGH} ({pattern.shown})"))


def _place(one: StoredAs, configured: str, ran: str | None = None) -> CheckPlace:
    more = f", run time says {ran}" if ran is not None else ""
    return CheckPlace(
        one.tensor,
        f"{one.module}: the configuration says {configured}, the file says {one.dtype}{more}.",
        numbers={"configuration": configured, "file": one.dtype, "run": ran},
        brief=f"configuration {configured}, file {one.dtype}" + (f", run {ran}" if ran is not None else ""),
    )


def _not_quantised(
    subject: Subject, modules: Sequence[StoredAs], by_pattern: Mapping[str, Pattern | None]
) -> Iterator[Hit]:
    """Matrices in high precision that nothing excludes, while other layers have theirs quantised."""
    targets = PatternList(subject.convention.targets, subject.convention.dialect)
    targets.prepare(one.module for one in modules)
    names_layers = any(not one.is_class for one in targets.all)
    quantised = Counter((one.pattern, one.shape) for one in modules if one.is_codes)
    says = subject.convention.excluded or targets or _says_quantised(subject.store.configs)
    if not says or subject.convention.dialect not in _BUILT_FROM_CONFIGURATION or _lists_single_layers(subject):
        return
    n_layers = _n_layers(subject.store.configs)
    for one in modules:
        if one.is_codes or by_pattern.get(one.module) is not None:
            continue
        numbers = starred(one.module)[1]
        if n_layers is not None and numbers and numbers[0] >= n_layers:
            continue  # layers beyond the last, which predict further tokens, are often left as they are
        is_named = names_layers and targets.whole(one.module) is not None
        # Of another shape it is another step of a sequence, and often too small for the kernels.
        n_siblings = quantised[one.pattern, one.shape]
        if is_named or (n_siblings >= _FEWEST_SIBLINGS and not names_layers):
            yield Hit("quantised_but_not_codes", _place(one, "quantised"))


def _says_quantised(configs: Mapping[str, Mapping[str, Any]]) -> bool:
    keys = ("quantization_config", "compression_config", "quantization")
    tables = [table for config in configs.values() for table in (config, config.get("text_config"))]
    return any(isinstance(table, Mapping) and any(key in table for key in keys) for table in tables)


def _lists_single_layers(subject: Subject) -> bool:
    """Whether the configuration has a format of its own for each layer that it names (mixed precision)."""
    tables = [table for config in subject.store.configs.values() for table in (config, *config.values())]
    return any(isinstance(table, Mapping) and "quantized_layers" in table for table in tables)


def _n_layers(configs: Mapping[str, Mapping[str, Any]]) -> int | None:
    config = configs.get("config.json", {})
    for table in (config, config.get("text_config")):
        if isinstance(table, Mapping) and isinstance(n := table.get("num_hidden_layers"), int):
            return n
    return None


def _meant_for_others(
    modules: Sequence[StoredAs], excluded: PatternList, by_pattern: Mapping[str, Pattern | None]
) -> Iterator[Hit]:
    """Entries that end within a word of a module's name: which modules they take depends on who reads them."""
    if not excluded:
        return
    hits: dict[tuple[str, str, str], list[tuple[Pattern, StoredAs]]] = defaultdict(list)
    shown = one_of_all_experts(modules)
    with_codes = {module_of(one.module) for one in shown if one.is_codes}
    named = {pattern.text for pattern in by_pattern.values() if pattern is not None}
    for one in shown:
        if by_pattern.get(one.module) is not None:
            continue
        for pattern in excluded.all:
            if pattern.how(one.module) == "part":
                loses_its_siblings = pattern.text in named and module_of(one.module) in with_codes
                if one.is_codes or loses_its_siblings:
                    hits[starred(pattern.text)[0], one.pattern, one.dtype].append((pattern, one))
    for (_, name, dtype), found in hits.items():
        pattern, one = found[0]
        n = len({each.module for _, each in found})
        more = f" ({n:,} such modules: {name})" if n > 1 else ""
        how = (
            f"is a part of {one.module}{more}, which the file has in {dtype}. Readers that look for the text within "
            "names take it as excluded, others as quantised"
            if pattern.is_name
            else f"also matches {one.module}{more}, which the file has in {dtype}, within a word of its name"
        )
        yield Hit(
            "pattern_meant_for_another",
            CheckPlace(
                one.tensor,
                f"{pattern.shown} {how}: pattern meant for another module?",
                numbers={"pattern": pattern.text, "n": n, "file": dtype},
            ),
            weight=n,
        )


def _ran_otherwise(subject: Subject, modules: Sequence[StoredAs]) -> Iterator[Hit]:
    if not subject.ran:
        return
    if not any(map(_is_narrow, subject.ran.values())):
        told = f"None of the {len(subject.ran):,} layers that ran did so in low precision: a run before quantisation."
        yield Hit("ran_in_other_precision", CheckPlace(next(iter(subject.ran)), told), severity="note")
        return
    excluded = PatternList(subject.convention.excluded, subject.convention.dialect)
    excluded.prepare(one.module for one in modules)
    for one in modules:
        ran = subject.ran.get(one.module)
        if ran is not None and one.is_codes != _is_narrow(ran):
            pattern = excluded.whole(one.module)
            configured = f"{_HIGH} ({pattern.shown})" if pattern else "quantised" if excluded else "nothing"
            yield Hit("ran_in_other_precision", _place(one, configured, ran), of=len(subject.ran))


def _is_narrow(dtype: str) -> bool:
    text = dtype.upper()
    return any(word in text for word in ("F8", "FP8", "FLOAT8", "E4M3", "E5M2", "E2M1", "FP4", "F4", "MX"))
