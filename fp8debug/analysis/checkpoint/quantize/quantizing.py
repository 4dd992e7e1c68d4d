"""From a checkpoint in high precision to one in FP8, a band of lines at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.quantize.casting import CastRecipe, WeightCast, matrix_amaxes
from fp8debug.analysis.checkpoint.quantize.choosing import HIGH_PRECISION, Chosen, Kept, choose
from fp8debug.analysis.checkpoint.quantize.configs import Made, describe
from fp8debug.analysis.checkpoint.quantize.folder import Folder
from fp8debug.analysis.checkpoint.quantize.forms import Form, element_format, form_for
from fp8debug.analysis.checkpoint.quantize.spelling import Spelled, Told
from fp8debug.analysis.checkpoint.quantize.torch_archive import STORAGES
from fp8debug.analysis.checkpoint.quantize.written import QuantisedTensor, Written
from fp8debug.analysis.checkpoint.store import Store, open_store
from fp8debug.analysis.checkpoint.store.writing import WrittenTensor
from fp8debug.errors import UsageError, some
from fp8debug.formats import Format
from fp8debug.recipes import NVFP4, BlockRecipe, MXRecipe, Recipe, TensorRecipe, parse_recipe

Extra = Mapping[str, tuple[str, npt.NDArray[Any]]]
"""Further tensors by name: dtype as safetensors spells it, and an array whose bytes are those of the tensor."""


def quantize_checkpoint(
    source: str | Path,
    target: str | Path,
    recipe: Recipe | str,
    dialect: str | None = None,
    *,
    include: str | None = None,
    exclude: str | None = None,
    shard_bytes: int | None = None,
    extra: Extra | None = None,
    force: bool = False,
    told: Told = lambda words: None,
) -> Written:
    """Write a checkpoint in FP8: the weights of its Linear layers, the rest as it is.

    Args:
        source: a checkpoint in BF16, F16 or F32.
        target: a folder, or a file NAME.safetensors (NAME.pt where the dialect is one of torch.save's files);
            configurations go beside it.
        recipe: how weights are scaled and cast, or its text.
        dialect: the convention to write it in; None: the usual one of the recipe.
        include: regex of module names; these alone are quantised, whatever kind of layer they are.
        exclude: regex of modules that are kept.
        shard_bytes: most bytes of a file of a folder; a larger tensor has one of its own; None: 5 GB.
        extra: further tensors to write, such as scales of inputs.
        force: replace an earlier checkpoint.
        told: progress.

    Raises:
        Fp8DebugError: the source cannot be read, or the target not written.
        UsageError: no such pair of recipe and dialect, a target that must not be written, nothing to quantise.
    """
    recipe = parse_recipe(recipe) if isinstance(recipe, str) else recipe
    form = form_for(recipe, dialect)
    fmt = element_format(recipe, form)
    assert isinstance(recipe, (BlockRecipe, TensorRecipe))  # as every recipe of a form is
    folder = Folder.at(Path(target), Path(source), ".pt" if form.is_torch else ".safetensors", force=force)
    with open_store(source) as store:
        check_high_precision(store)
        chosen, kept = choose(
            store,
            include=include,
            exclude=exclude,
            multiples=multiples_of(recipe, form),
            has_stacks=form.has_stacks,
        )
        casts = [_cast(store, one, recipe, fmt, told) for one in chosen]
        spelled = {cast.stored.name: Spelled(cast, form) for cast in casts if not cast.makes_nan_of_zeros}
        kept += tuple(Kept(cast.stored.name, _ZEROS) for cast in casts if cast.makes_nan_of_zeros)
        plain = (*(one.name for one in kept), *(extra or ()))
        made = Made(form, recipe, fmt, tuple(spelled.values()), plain, _ignored(store, kept))
        tensors = [*_tensors(store, spelled, told), *_extra_tensors(extra or {})]
        check_tensors(tensors, form)
        files = folder.write(tensors, store, describe(made), shard_bytes)
        return Written(
            path=str(target),
            source=str(source),
            dialect=form.dialect,
            recipe=recipe.text,
            fmt=fmt.name,
            quantised=tuple(map(_written, spelled.values())),
            kept=kept,
            files=files,
            n_bytes=sum(tensor.n_bytes for tensor in tensors),
            n_source_bytes=store.n_bytes,
        )


_ZEROS = "all zeros, of which this recipe makes NaN"


def check_high_precision(store: Store) -> None:
    """Refuse to quantise what is quantised already.

    Raises:
        UsageError: it holds FP8 tensors.
    """
    name = next((name for name, stored in store.tensors.items() if stored.dtype.startswith(("F8_", "F4", "F6_"))), None)
    if name is not None:
        raise UsageError(
            f"{store.path} is quantised already: {name} is {store.tensors[name].dtype}; expected a checkpoint in "
            f"{', '.join(HIGH_PRECISION)}: quantise the one that it was made of"
        )


def check_tensors(tensors: Sequence[WrittenTensor], form: Form) -> None:
    """Refuse what the files cannot hold.

    Raises:
        UsageError: two tensors would have the same name, or a file of torch.save has no storage for a dtype.
    """
    counted = Counter(tensor.name for tensor in tensors)
    twice = [name for name, n in counted.items() if n > 1]
    if twice:
        raise UsageError(
            f"{some(twice)} would be written twice as {form.dialect}: a tensor that is not quantised has the name of "
            "a scale; remove it, or choose another --as"
        )
    if form.is_torch and (odd := [one for one in tensors if one.dtype not in STORAGES]):
        raise UsageError(
            f"{odd[0].name} is {odd[0].dtype}, which {form.dialect} files are not written with; expected one of "
            f"{', '.join(STORAGES)}"
        )


def multiples_of(recipe: CastRecipe, form: Form) -> tuple[int, int]:
    """What the lines of a matrix, and the elements of a line, must be multiples of."""
    if not isinstance(recipe, BlockRecipe):
        return 1, 1
    tile = recipe.tile("w")
    if form.has_whole_blocks:
        return tile.lines, tile.length or 1
    # Blocks of microscaling have one size; packed codes fill their bytes.
    return 1, (tile.length or 1) if isinstance(recipe, (MXRecipe, NVFP4)) else 1


def _cast(store: Store, chosen: Chosen, recipe: CastRecipe, fmt: Format, told: Told) -> WeightCast:
    told(f"looking at {chosen.module}")
    return WeightCast(store, chosen.stored, recipe, fmt, matrix_amaxes(store, chosen.stored, recipe))


def _ignored(store: Store, kept: Sequence[Kept]) -> tuple[str, ...]:
    """Modules that are kept although a reader might take them for Linear layers that are quantised."""
    matrices = [one for one in kept if one.is_linear and len(store.tensors[one.name].shape) >= 2]
    return tuple(one.name.removesuffix(".weight") for one in matrices)


def _tensors(store: Store, spelled: Mapping[str, Spelled], told: Told) -> Iterator[WrittenTensor]:
    """What each tensor becomes, in the order of the source."""
    for name, stored in store.tensors.items():
        if name in spelled:
            yield from spelled[name].tensors(told)
        else:
            yield WrittenTensor(name, stored.dtype, stored.shape, partial(store.chunks, name))


def _extra_tensors(extra: Extra) -> Iterator[WrittenTensor]:
    for name, (dtype, array) in extra.items():
        yield WrittenTensor(name, dtype, np.shape(array), partial(_one, array))


def _one(array: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
    return (array,)


def _written(spelled: Spelled) -> QuantisedTensor:
    cast = spelled.cast
    return QuantisedTensor(
        name=cast.stored.name,
        tensors=tuple(tensor.name for tensor in spelled.tensors()),
        shape=cast.stored.shape,
        sqnr_db=cast.sums.sqnr_db,
        n_nonfinite=cast.sums.n_nonfinite,
    )
