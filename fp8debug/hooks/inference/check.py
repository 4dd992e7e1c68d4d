"""The inference check: one batch in high precision, in emulated FP8, and with FP8 weights alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from fp8debug.errors import UsageError
from fp8debug.hooks.backends.finding import find_layers
from fp8debug.hooks.emulate.emulation import explain_nothing, why_not
from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.hooks.inference.batch import Batch, fitted
from fp8debug.hooks.inference.noise import Noise
from fp8debug.hooks.inference.origin import Origin, find_origin
from fp8debug.hooks.inference.outputs import Difference, difference
from fp8debug.hooks.inference.passes import Reference, Subject
from fp8debug.plans import Plan
from fp8debug.recipes import CurrentScaling, DelayedScaling, Recipe, parse_recipe

ALL, WEIGHTS = "all", "weights"


@dataclass(frozen=True, slots=True)
class Variant:
    """One emulated forward beside the reference."""

    name: str
    """all: x and w of every layer | weights: w alone, as a checkpoint in FP8 that is read back."""
    text: str
    """What is emulated, such as `current, only w`."""
    loss: float | None
    outputs: Difference


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """One GEMM layer; SQNRs are of its output against the reference's, dB; None: no error, or not compared."""

    name: str
    n_calls: int
    own_db: float | None
    """Fed with the reference's x: what this layer adds."""
    own_weights_db: float | None
    """The same with w alone in FP8."""
    gathered_db: float | None
    """In the emulated forward: what has gathered from the input on."""
    gathered_weights_db: float | None
    """The same with all weights in FP8, and nothing else."""
    n_nonfinite: int
    """Values that are NaN or Inf in the emulated forward and not in the reference."""


@dataclass(frozen=True, slots=True)
class InferenceCheck:
    """What came out."""

    title: str
    """What was checked."""
    recipe: str
    precision: str
    """What the reference computes in: `BF16 autocast`, or the model's own dtype."""
    batch: str
    loss: float | None
    """Of the reference."""
    loss_source: str
    are_logits: bool
    """False: the model returns something else than logits."""
    variants: tuple[Variant, ...]
    layers: tuple[LayerDifference, ...]
    """In the order in which they first ran."""
    origin: Origin
    kept: tuple[str, ...]
    """Layers that the plan keeps in high precision."""
    left: dict[str, str]
    """Layers that cannot be emulated, with the reason."""
    notes: tuple[str, ...] = ()

    @property
    def emulated(self) -> Variant:
        """The one with x and w in FP8."""
        return self.variants[0]


def check_inference(
    model: nn.Module, batch: Batch, recipe: str | Recipe | None = None, *, plan: Plan | None = None, title: str = ""
) -> InferenceCheck:
    """Run `model` on `batch` in high precision and emulated, and find where the outputs part.

    The model is put into evaluation mode and back; nothing else of it changes. It runs three times, and once for each
    group of layers that is tried: 30 times at most, 9 times where it has more than 24 layers.

    Args:
        model: any module whose forward takes the batch.
        batch: see `batch_file.read_batch`.
        recipe: such as "current" or "mxfp8"; default: the plan's. Of delayed scaling only the formats count: one
            forward has no history.
        plan: a fallback plan: what departs from the recipe.
        title: what it is called in the answer.

    Raises:
        UsageError: neither a recipe nor a plan, an unknown recipe, no layer to emulate, or a batch that `forward` does
            not take.
        Fp8DebugError: the model returns nothing to compare.
    """
    plans, notes = _plans(recipe, plan)
    found = find_layers(model, backend="modules")
    if not found or (nothing := explain_nothing(plans[ALL], found)) is not None:
        raise UsageError(nothing if found else f"{type(model).__name__} has no nn.Linear layer to emulate")
    layers = [layer for layer in found if why_not(layer.module) is None]
    made = fitted(batch, model)
    subject = Subject(model, made, layers)
    reference = subject.reference(plans)
    runs = {name: subject.emulated(plan, reference) for name, plan in plans.items()}
    variants = tuple(
        Variant(name, plans[name].text, outputs.loss, difference(reference.outputs, outputs))
        for name, (outputs, _) in runs.items()
    )
    return InferenceCheck(
        title=title or type(model).__name__,
        recipe=plans[ALL].recipe.text,
        precision=subject.precision,
        batch=made.text,
        loss=reference.outputs.loss,
        loss_source=reference.outputs.loss_source,
        are_logits=reference.outputs.are_logits,
        variants=variants,
        layers=tuple(
            _layer(name, len(calls), reference, *(runs[v][1].get(name) for v in plans))
            for name, calls in reference.kept.items()
        ),
        origin=find_origin(subject, reference, plans[ALL], variants[0].outputs.noise, _nonfinite(runs[ALL][1])),
        kept=tuple(layer.name for layer in layers if plans[ALL].keeps(layer.name)),
        left={layer.name: reason for layer in found if (reason := why_not(layer.module)) is not None},
        notes=tuple(notes),
    )


def _layer(
    name: str, n_calls: int, reference: Reference, gathered: Noise | None, gathered_weights: Noise | None
) -> LayerDifference:
    return LayerDifference(
        name,
        n_calls,
        reference.own[ALL][name].sqnr_db,
        reference.own[WEIGHTS][name].sqnr_db,
        None if gathered is None else gathered.sqnr_db,
        None if gathered_weights is None else gathered_weights.sqnr_db,
        0 if gathered is None else gathered.n_nonfinite,
    )


def _nonfinite(gathered: dict[str, Noise]) -> str | None:
    """The first layer in whose output a value was lost to NaN or Inf."""
    return next((name for name, noise in gathered.items() if noise.n_nonfinite), None)


def _plans(recipe: str | Recipe | None, fallback: Plan | None) -> tuple[dict[str, EmulationPlan], list[str]]:
    """What each variant emulates, and a note where that is not what was asked for."""
    asked = recipe if recipe is not None or fallback is None else fallback.recipe
    if asked is None:
        raise UsageError("inference check: got neither a recipe nor a plan; expected a recipe such as 'current'")
    asked = parse_recipe(asked) if isinstance(asked, str) else asked
    used = _memoryless(asked)
    notes = []
    if used is not asked:
        notes.append(f"one forward has no history for {asked.text}: operands are cast with scales of their own amax")
    if fallback is not None:
        entries = [replace(e, change=_memoryless(parse_recipe(e.change)).text) for e in fallback.entries]
        fallback = replace(fallback, entries=tuple(entries))
    parts = {ALL: (), WEIGHTS: ("w",)}
    return {name: EmulationPlan.from_words(used, (), only, plan=fallback) for name, only in parts.items()}, notes


def _memoryless(recipe: Recipe) -> Recipe:
    return CurrentScaling(fp8_format=recipe.fp8_format) if isinstance(recipe, DelayedScaling) else recipe
