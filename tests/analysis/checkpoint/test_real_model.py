"""A real model: nothing to say when it is healthy, in every dialect; faults named, with tensor, factor and dialect."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from fp8debug.analysis.checkpoint import Audit, audit_checkpoint
from fp8debug.analysis.checkpoint.quantize import Form, forms, quantize_checkpoint

Quantised = Callable[[str, str], Path]
Once = Callable[[str, Callable[[Path], None]], Path]
PARTS = re.compile(
    r"encoder\.layer\.(0\.(attention|intermediate|output\.LayerNorm)|[12]\.attention\.output)\.|embeddings\.LayerNorm"
)
N_LINES = 384
"""Of each matrix at most that many: three blocks each way, so that a grid is not its own transpose."""
N_WEIGHTS = 7
"""Of the first layer all but one, of two more one each."""
GENERIC = ("multiplies", "divides")
"""Dialects whose names say nothing: refused until somebody says which it is."""


@pytest.fixture(scope="module")
def example(repository: Path) -> ModuleType:
    path = repository / "examples" / "checkpoint_faults.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def master(once: Once, example: ModuleType) -> Path:
    """Parts of it, FP32."""

    def make(folder: Path) -> None:
        checkpoint = example.Checkpoint.load(example.model_folder())
        checkpoint.tensors = {name: one for name, one in checkpoint.tensors.items() if PARTS.match(name)}
        for name in checkpoint.tensors:
            checkpoint.put(name, checkpoint.floats(name)[:N_LINES])
        checkpoint.save(folder)

    return once("minilm", make)


@pytest.fixture(scope="module")
def quantised(once: Once, master: Path) -> Quantised:
    """`quantised(recipe, dialect)`: the folder of the model in it."""

    def of(recipe: str, dialect: str) -> Path:
        name = f"minilm-{dialect}-{recipe}".replace(":", "-").replace(",", "-")

        def make(folder: Path) -> None:
            quantize_checkpoint(master, folder, recipe, dialect)

        return once(name, make)

    return of


def told(audit: Audit) -> list[str]:
    """Findings that a person has to look at."""
    return [f"{one.check}: {one.message}" for one in audit.findings if one.severity in ("error", "warning", "watch")]


def test_a_model_in_high_precision_has_nothing_to_say(master: Path) -> None:
    audit = audit_checkpoint(master, [master])
    assert audit.convention.dialect is None and audit.findings == ()
    assert {one.verdict for one in audit.comparisons[0].tensors} == {"identical"}


def first_of_each() -> list[Form]:
    """Forms that between them have every dialect and every recipe."""
    chosen: list[Form] = []
    for form in forms():
        if form.dialect not in {one.dialect for one in chosen} or form.recipe not in {one.recipe for one in chosen}:
            chosen.append(form)
    return chosen


@pytest.mark.parametrize("form", forms(), ids=lambda form: f"{form.dialect}-{form.recipe}")
def test_healthy_in_every_dialect(form: Form, quantised: Quantised, master: Path) -> None:
    dialect = form.dialect if form.dialect in GENERIC else None
    references = [master] if form in first_of_each() else []
    audit = audit_checkpoint(quantised(form.recipe, form.dialect), references, dialect=dialect)
    assert (audit.convention.dialect, told(audit), audit.problems) == (form.dialect, [], ())
    assert len(audit.convention.quantised) == N_WEIGHTS
    for comparison in audit.comparisons:
        verdicts = Counter(one.verdict for one in comparison.tensors)
        assert verdicts == {"faithful": N_WEIGHTS, "identical": len(comparison.tensors) - N_WEIGHTS}


Factor = Callable[[Callable[[str], float]], float]


@dataclass(frozen=True)
class Named:
    """What has to be said of a planted fault."""

    check: str
    tensor: str
    """Of the worst place."""
    n: int = 1
    """Places."""
    factor: float | Factor | None = None
    """By how much values come out too large; or that, of the largest magnitudes of the master's tensors."""
    hypothesis: str | None = None
    """The best explanation of that tensor against the master."""


EXPECTED = {
    "scale_dropped": (Named("scale_missing", "{UP}.weight"), Named("codes_as_values", "{UP}.weight")),
    "scale_inverted": (
        Named("values_differ", "{UP}.weight", hypothesis="inverted"),
        Named("magnitude_too_large", "{UP}.weight"),
    ),
    "grid_transposed": (Named("values_differ", "{OUT}.weight", hypothesis="transposed_grid"),),
    "scales_rounded_up": (Named("values_differ", "", N_WEIGHTS, hypothesis="ceil_scale"),),
    "fnuz_declared_fn": (Named("values_differ", "", N_WEIGHTS, factor=2.0, hypothesis="fnuz"),),
    "exponents_off_by_one": (Named("values_differ", "{UP}.weight", factor=2.0, hypothesis="e8m0_bias"),),
    "exponents_as_integers": (
        Named("values_differ", "{UP}.weight", hypothesis="e8m0_as_integer"),
        Named("magnitude_too_large", "{UP}.weight"),
    ),
    "block_size_misstated": (Named("scale_misfit", "", N_WEIGHTS),),
    "scale_stale": (Named("values_differ", "{UP}.weight", factor=0.8, hypothesis="stale"),),
    "rounded_twice": (Named("second_rounding", "{UP}.weight", hypothesis="second_rounding"),),
    "codes_nan": (Named("code_nan", "{OTHER_OUT}.weight"),),
    "scale_infinite": (Named("scale_nonfinite", "{OTHER_OUT}.weight_scale_inv"),),
    "scales_swapped": (
        Named(
            "values_differ",
            "{VALUE}.weight",
            2,
            factor=lambda amax: amax("QUERY") / amax("VALUE"),
            hypothesis="other_layer",
        ),
    ),
    "scale_shared": (Named("values_differ", "{VALUE}.weight", factor=lambda amax: amax("KEY") / amax("VALUE")),),
    "input_scale_missing": (Named("tensor_missing", "{OUT}.input_scale"),),
    "second_level_dropped": (
        Named(
            "values_differ", "{UP}.weight", factor=lambda amax: 6 * 448 / amax("UP"), hypothesis="missing_second_level"
        ),
        Named("magnitude_too_large", "{UP}.weight"),
    ),
    "nibbles_swapped": (Named("values_differ", "{UP}.weight", hypothesis="nibble_order"),),
    "norm_not_finite": (Named("nonfinite", "encoder.layer.0.output.LayerNorm.weight"),),
    "excluded_quantised": (Named("excluded_but_codes", "{UP}.weight"),),
}


def test_every_fault_that_the_example_plants_is_expected_here(example: ModuleType) -> None:
    assert EXPECTED.keys() == example.FAULTS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_fault_is_named(name: str, example: ModuleType, quantised: Quantised, master: Path, tmp_path: Path) -> None:
    def amax(tensor: str) -> float:
        floats = example.Checkpoint.load(master).floats(f"{getattr(example, tensor)}.weight")
        return float(abs(floats).max())

    fault = example.FAULTS[name]
    checkpoint = example.Checkpoint.load(quantised(fault.recipe, fault.dialect))
    fault.plant(checkpoint)
    checkpoint.save(tmp_path)
    audit = audit_checkpoint(tmp_path, [master])
    assert audit.convention.dialect == fault.dialect
    serious = {one.check: one for one in audit.findings if one.severity in ("error", "warning", "watch")}
    explained = {one.name: one.hypotheses[0].name for one in audit.comparisons[0].tensors if one.hypotheses}
    for named in EXPECTED[name]:
        places = serious[named.check].places
        assert len(places) == named.n
        assert named.tensor.format(**vars(example)) in places[0].tensor
        if named.factor is not None:
            right = named.factor(amax) if callable(named.factor) else named.factor
            assert places[0].factor == pytest.approx(right, rel=1e-3)
        if named.hypothesis is not None:
            assert {explained[place.tensor] for place in places} == {named.hypothesis}
    # Nothing else is accused: not another tensor, not another kind of fault.
    accused = {place.tensor for one in serious.values() for place in one.places}
    allowed = {place.tensor for named in EXPECTED[name] for place in serious[named.check].places}
    assert {one.removesuffix("_scale_inv") for one in accused} <= {one.removesuffix("_scale_inv") for one in allowed}
