"""Scales, bit for bit, against the CUDA-kernel columns of the vectors and a slot-by-slot replay of the kernel."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug.errors import UsageError
from fp8debug.formats import E4M3, E5M2, FORMATS, Format
from fp8debug.recipes import (
    BF16,
    MXFP4,
    MXFP6,
    MXFP8,
    NVFP4,
    RECIPES,
    BlockRecipe,
    BlockScaling,
    CurrentScaling,
    DelayedScaling,
    RangeExpansion,
    Recipe,
    RowWise,
    Static,
    TensorRecipe,
    parse_recipe,
    scale_inv,
)
from fp8debug.recipes.base import parameters

DATA = Path(__file__).parent / "data"
FLT_MAX = np.finfo(np.float32).max


def load(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def from_bits(text: str) -> np.float32:
    return np.uint32(int(text, 16)).view(np.float32)


def to_bits(value: np.float32) -> str:
    assert isinstance(value, np.float32)
    return f"{value.view(np.uint32):08x}"


@pytest.mark.parametrize(("flavour", "column"), [("te", "te_kernel_scale_u32"), ("torchao", "torchao_scale_u32")])
def test_current_scale_equals_its_upstream_in_every_vector(flavour: str, column: str) -> None:
    """The third column, te_pyref, is Transformer Engine's test oracle; nobody trains with its zeros and NaN."""
    vectors = load("current_scaling.json")["vectors"]
    assert len(vectors) == 136
    wrong = [
        vector
        for vector in vectors
        if to_bits(
            CurrentScaling(power_of_two=vector["pow2"], flavour=flavour).scale(
                float(from_bits(vector["amax_u32"])), FORMATS[vector["fmt"].upper()]
            )
        )
        != vector[column]
    ]
    assert wrong == []


@settings(deadline=None)  # a busy machine is no failure
@given(bits=st.integers(1, 0x7F7FFFFF), fmt=st.sampled_from([E4M3, E5M2]), power_of_two=st.booleans())
def test_current_scale_is_the_float32_quotient(bits: int, fmt: Format, power_of_two: bool) -> None:
    amax = np.uint32(bits).view(np.float32)
    with np.errstate(over="ignore"):
        expected = min(np.float32(fmt.max) / amax, FLT_MAX)
    if power_of_two:
        expected = (expected.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
    assert to_bits(CurrentScaling(power_of_two=power_of_two).scale(float(amax), fmt)) == to_bits(expected)


@pytest.mark.parametrize("amax", [0.0, math.inf, math.nan])
def test_current_scale_is_1_without_a_usable_amax(amax: float) -> None:
    assert CurrentScaling().scale(amax, E4M3) == 1


def test_amax_epsilon_replaces_smaller_amaxes_zero_included() -> None:
    recipe = CurrentScaling(amax_epsilon=0.5)
    assert recipe.scale(0.0, E4M3) == recipe.scale(0.25, E4M3) == 896
    assert recipe.scale(2.0, E4M3) == 224
    assert recipe.scale(math.nan, E4M3) == 1


def test_delayed_scale_equals_the_kernel_in_every_vector() -> None:
    data = load("delayed_scaling.json")
    assert {v["seq"] for v in data["vectors"]} == set(data["sequences"])
    assert {(v["algo"], v["margin"]) for v in data["vectors"]} == {
        (algo, margin) for algo in ("max", "most_recent") for margin in (0, 2)
    }
    for vector in data["vectors"]:
        fmt = FORMATS[vector["fmt"].upper()]
        recipe = DelayedScaling(
            amax_history_len=vector["history"], amax_compute_algo=vector["algo"], margin=vector["margin"]
        )
        state = recipe.new_state([fmt])
        assert to_bits(state.scale(fmt)) == "3f800000"
        scales = []
        for step, amax in enumerate(data["sequences"][vector["seq"]]):
            state.observe(float(from_bits(amax)))
            state.roll(step)
            scales.append(to_bits(state.scale(fmt)))
        assert scales == vector["te_kernel_scale_u32"], vector


class KernelReplay:
    """delayed_scaling.cu `kernel_bulk`, slot by slot, with the whole history in hand."""

    def __init__(self, length: int, algo: str, margin: int, fmt: Format) -> None:
        self.history = np.zeros(length, np.float32)
        self.window = self.history
        self.algo = algo
        self.maximum = np.float32(fmt.max * 2.0**-margin)
        self.scale = np.float32(1)

    def observe(self, amax: float) -> None:
        bits = self.history.view(np.int32)  # atomicMax on the bits of a non-negative float
        bits[0] = max(bits[0], np.float32(amax).view(np.int32))

    def roll(self) -> None:
        last = self.history[0]
        if last == 0:
            return
        self.window = np.append(self.history[1:], last)
        amax = last if self.algo == "most_recent" else np.fmax.reduce(self.window, initial=np.float32(0))
        self.history = self.window.copy()
        self.history[0] = 0
        if np.isfinite(amax) and amax > 0:
            with np.errstate(over="ignore"):
                self.scale = min(self.maximum / amax, FLT_MAX)


AMAX = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, math.inf, math.nan, float(FLT_MAX), 2.0**-149, 2.0**-126]),
    st.floats(0, float(FLT_MAX), width=32),
    st.floats(0, 8, width=32),
)


@settings(deadline=None)  # a busy machine is no failure
@given(
    passes=st.lists(st.lists(AMAX, max_size=3), max_size=60),
    length=st.integers(1, 12),
    algo=st.sampled_from(["max", "most_recent"]),
    margin=st.integers(-2, 3),
)
def test_delayed_state_equals_the_kernel_replayed(
    passes: list[list[float]], length: int, algo: str, margin: int
) -> None:
    recipe = DelayedScaling(amax_history_len=length, amax_compute_algo=algo, margin=margin)
    state = recipe.new_state([E5M2, E4M3])
    replays = {fmt.name: KernelReplay(length, algo, margin, fmt) for fmt in (E5M2, E4M3)}
    consumed = 0
    for step, amaxes in enumerate(passes):
        for amax in amaxes:
            state.observe(amax)
        consumed += any(amax != 0 for amax in amaxes)
        state.roll(step)
        for fmt in (E5M2, E4M3):
            replay = replays[fmt.name]
            for amax in amaxes:
                replay.observe(amax)
            replay.roll()
            assert to_bits(state.scale(fmt)) == to_bits(replay.scale)
        assert state.n_rolls == consumed
        assert state.history_zeros == int(np.sum(replay.window == 0))
        if state.amax_used is not None:
            quotient = replays["E4M3"].maximum.astype(np.float64) / state.amax_used
            assert state.scale(E4M3) == np.float32(min(quotient, float(FLT_MAX)))


def test_state_tells_which_step_and_amax_set_the_scale() -> None:
    state = DelayedScaling(amax_history_len=4).new_state([E4M3])
    assert (float(state.scale(E4M3)), state.amax_used, state.set_at_step, state.n_rolls) == (1, None, None, 0)
    assert (state.history_len, state.history_zeros) == (4, 4)
    state.observe(7.0)
    assert state.scale(E4M3) == 1  # the scale in force stays until the roll
    state.roll(10)
    assert (float(state.scale(E4M3)), state.amax_used, state.set_at_step, state.history_zeros) == (64, 7.0, 10, 3)
    state.roll(11)  # nothing observed: as an amax of 0
    assert (float(state.scale(E4M3)), state.set_at_step, state.n_rolls) == (64, 10, 1)
    state.observe(3.5)
    state.roll(12)
    assert (float(state.scale(E4M3)), state.amax_used, state.set_at_step, state.n_rolls) == (64, 7.0, 12, 2)
    state.observe(math.inf)
    state.roll(13)  # an infinity in the window freezes the scale
    assert (float(state.scale(E4M3)), state.amax_used, state.set_at_step, state.n_rolls) == (64, 7.0, 12, 3)


def test_largest_of_several_observations_enters_the_history() -> None:
    state = DelayedScaling(amax_compute_algo="most_recent").new_state([E4M3])
    for amax in (1.0, 7.0, 3.5):
        state.observe(amax)
    state.roll(0)
    assert state.amax_used == 7.0


def test_window_forgets_after_its_length() -> None:
    state = DelayedScaling(amax_history_len=3).new_state([E4M3])
    used = []
    for step, amax in enumerate([8.0, 4.0, 2.0, 1.0, 1.0, 1.0]):
        state.observe(amax)
        state.roll(step)
        used.append(state.amax_used)
    assert used == [8.0, 8.0, 8.0, 4.0, 2.0, 1.0]


def test_scale_inv_is_the_float32_reciprocal() -> None:
    assert to_bits(scale_inv(np.float32(3))) == "3eaaaaab"
    assert to_bits(scale_inv(np.float32(FLT_MAX))) == "00200000"
    assert scale_inv(np.float32(2.0**-140)) == np.inf
    assert scale_inv(np.float32(0)) == np.inf


def test_hybrid_measures_gradients_in_both_formats() -> None:
    for recipe in (CurrentScaling(), DelayedScaling()):
        for tensor in ("x", "w", "y"):
            assert recipe.formats_for(tensor) == ((E4M3, False),)
        for tensor in ("dy", "dx", "dw"):
            assert recipe.formats_for(tensor) == ((E5M2, False), (E4M3, True))
    assert CurrentScaling(fp8_format="E4M3").formats_for("dy") == ((E4M3, False),)
    assert DelayedScaling(fp8_format="E5M2").formats_for("x") == ((E5M2, False),)
    with pytest.raises(UsageError, match=r"unknown tensor 'dz'; did you mean"):
        CurrentScaling().formats_for("dz")


def test_defaults_are_those_of_transformer_engine() -> None:
    recipe = DelayedScaling()
    assert (recipe.amax_history_len, recipe.amax_compute_algo, recipe.margin, recipe.fp8_format) == (
        *(1024, "max", 0, "HYBRID"),
    )
    assert (CurrentScaling().power_of_two, CurrentScaling().amax_epsilon) == (False, 0.0)


@pytest.mark.parametrize(
    ("text", "recipe", "canonical"),
    [
        ("current", CurrentScaling(), "current"),
        ("current:flavour=torchao", CurrentScaling(flavour="torchao"), "current:flavour=torchao"),
        ("delayed:te", DelayedScaling(), "delayed"),
        (
            "delayed:Megatron",
            DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent"),
            "delayed:amax_history_len=1,amax_compute_algo=most_recent",
        ),
        (
            "delayed:amax_compute_algo=max,megatron,margin=2",
            DelayedScaling(amax_history_len=1, margin=2),
            "delayed:amax_history_len=1,margin=2",
        ),
        ("static:scale=0.25", Static(value=0.25), "static:scale=0.25"),
        ("bf16", BF16(), "bf16"),
        ("coat:k=2,fp8_format=e2m1", RangeExpansion(k=2.0, fp8_format="E2M1"), "coat:k=2.0,fp8_format=E2M1"),
        ("rowwise:power_of_two=false", RowWise(power_of_two=False), "rowwise:power_of_two=false"),
        ("block:flavour=DeepSeek", BlockScaling(flavour="deepseek"), "block:flavour=deepseek"),
        ("block:fp8_format=hybrid", BlockScaling(fp8_format="HYBRID"), "block:fp8_format=HYBRID"),
        ("mxfp8:fp8_format=E4M3,scale_rule=rceil", MXFP8(), "mxfp8"),
        ("mxfp8:scale_rule=floor", MXFP8(scale_rule="floor"), "mxfp8:scale_rule=floor"),
        ("mxfp6:fp8_format=e3m2", MXFP6(fp8_format="E3M2"), "mxfp6:fp8_format=E3M2"),
        ("mxfp4:fp8_format=e2m1", MXFP4(), "mxfp4"),
        ("nvfp4:disable_rht=true", NVFP4(disable_rht=True), "nvfp4:disable_rht=true"),
        ("delayed", DelayedScaling(), "delayed"),
        ("delayed:", DelayedScaling(), "delayed"),
        ("delayed:amax_history_len=16", DelayedScaling(amax_history_len=16), "delayed:amax_history_len=16"),
        (
            " Delayed : margin = -1 , amax_history_len=16",
            DelayedScaling(amax_history_len=16, margin=-1),
            "delayed:amax_history_len=16,margin=-1",
        ),
        ("delayed:amax_history_len=1024,margin=0", DelayedScaling(), "delayed"),
        (
            "delayed:fp8_format=e4m3,amax_compute_algo=most_recent",
            DelayedScaling(amax_compute_algo="most_recent", fp8_format="E4M3"),
            "delayed:amax_compute_algo=most_recent,fp8_format=E4M3",
        ),
        (
            "current:power_of_two=True,amax_epsilon=1e-12",
            CurrentScaling(power_of_two=True, amax_epsilon=1e-12),
            "current:power_of_two=true,amax_epsilon=1e-12",
        ),
    ],
)
def test_text_is_read_and_written_canonically(text: str, recipe: Recipe, canonical: str) -> None:
    assert parse_recipe(text) == recipe
    assert recipe.text == canonical
    assert parse_recipe(canonical) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("delayd", "unknown recipe 'delayd'; did you mean delayed? expected one of delayed, current"),
        ("", "unknown recipe ''; expected one of delayed, current"),
        ("delayed:margn=1", "unknown parameter of recipe delayed 'margn'; did you mean margin"),
        ("delayed:power_of_two=true", "unknown parameter of recipe delayed 'power_of_two'"),
        ("delayed:16", "got '16', expected name=value; parameters: amax_history_len, amax_compute_algo, margin"),
        ("delayed:megatrn", "got 'megatrn', expected name=value"),
        ("delayed:megatrn", "presets: te, megatron; did you mean megatron"),
        ("delayed:te,megatron", "'megatron' is a second preset; give one"),
        ("mxfp8:flor", "got 'flor', expected name=value; parameters: scale_rule, flavour, enable_2d_quantization"),
        ("mxfp9", "unknown recipe 'mxfp9'; did you mean mxfp8"),
        ("mxfp8:scale_rule=round", "scale_rule is 'round', expected one of rceil, floor, ceil, even"),
        ("mxfp8:scale_rul=floor", "unknown parameter of recipe mxfp8 'scale_rul'; did you mean scale_rule"),
        ("mxfp8:fp8_format=E2M1", "fp8_format is 'E2M1', expected one of E4M3, E5M2, HYBRID"),
        ("mxfp6:fp8_format=HYBRID", "fp8_format is 'HYBRID', expected one of E2M3, E3M2"),
        ("nvfp4:fp8_format=E4M3", "fp8_format is 'E4M3', expected one of E2M1"),
        ("nvfp4:flavour=nvidia", "flavour is 'nvidia', expected one of te, torchao, modelopt"),
        ("block:flavour=torchao", "flavour is 'torchao', expected one of te, deepgemm, deepseek"),
        ("current:fp8_format=E8M0", "fp8_format is 'E8M0', expected one of HYBRID, E4M3, E5M2, E4M3FNUZ"),
        ("current:flavour=te_pyref", "flavour is 'te_pyref', expected one of te, torchao"),
        ("coat:k=0.5", "k is 0.5, expected 0 or a finite number of at least 1"),
        ("coat:k=inf", "k is inf, expected 0 or a finite number of at least 1"),
        ("static:scale=0", "scale is 0.0, expected a positive, finite float32"),
        ("static:scale=1e50", "scale is 1e+50, expected a positive, finite float32"),
        ("static:scale=1e-60", "scale is 1e-60, expected a positive, finite float32"),
        ("static:value=3", "unknown parameter of recipe static 'value'; did you mean scale"),
        ("static:set_at_step=-1", "set_at_step is -1, expected an integer, 0 or more"),
        ("bf16:fp8_format=E4M3", "fp8_format is 'E4M3', expected one of BF16"),
        ("delayed:margin=1,margin=2", "margin is given twice"),
        ("delayed:margin=33", "recipe delayed: margin is 33, expected an integer from -32 to 32"),
        ("delayed:margin=1.5", "recipe delayed: margin is '1.5', expected an integer"),
        ("delayed:margin=", "recipe delayed: margin is '', expected an integer"),
        ("delayed:amax_history_len=0", "amax_history_len is 0, expected an integer, 1 or more"),
        ("delayed:amax_compute_algo=mean", "amax_compute_algo is 'mean', expected one of max, most_recent"),
        ("delayed:fp8_format=E3M4", "fp8_format is 'E3M4', expected one of HYBRID, E4M3, E5M2"),
        ("current:power_of_two=maybe", "power_of_two is 'maybe', expected true or false"),
        ("current:amax_epsilon=-1", "amax_epsilon is -1.0, expected a finite number, 0 or more"),
        ("current:amax_epsilon=nan", "amax_epsilon is nan, expected a finite number, 0 or more"),
        ("current:amax_epsilon=1e39", "amax_epsilon is 1e+39, expected a finite number, 0 or more"),
        ("current:amax_epsilon=tiny", "amax_epsilon is 'tiny', expected a number"),
    ],
)
def test_a_wrong_recipe_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_recipe(text)
    assert message in str(caught.value)


def test_every_recipe_is_of_one_family_and_names_a_format_for_every_tensor() -> None:
    for kind in RECIPES:
        recipe = parse_recipe(kind)
        assert isinstance(recipe, (DelayedScaling, TensorRecipe, BlockRecipe))
        assert recipe.text == kind
        for tensor in ("x", "w", "dy", "y", "dx", "dw"):
            primary = [fmt for fmt, alternate in recipe.formats_for(tensor) if not alternate]
            assert len(primary) == 1


def test_the_documentation_has_every_parameter_and_default() -> None:
    page = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE))
    assert list(rows) == list(RECIPES)
    for kind, cell in rows.items():
        written = ",".join(re.findall(r"`([^`]+)`", cell))
        assert parse_recipe(f"{kind}:{written}").text == kind
        assert [item.partition("=")[0] for item in written.split(",")] == list(parameters(RECIPES[kind]))


def test_default_formats_are_upstreams() -> None:
    formats = {kind: parse_recipe(kind).formats_for("dy")[0][0].name for kind in RECIPES}
    assert formats == {
        **{"delayed": "E5M2", "current": "E5M2", "static": "E5M2", "coat": "E5M2", "bf16": "BF16"},
        **{"rowwise": "E4M3", "block": "E4M3", "mxfp8": "E4M3"},
        **{"mxfp6": "E2M3", "mxfp4": "E2M1", "nvfp4": "E2M1"},
    }
    assert MXFP8(fp8_format="HYBRID").formats_for("dy") == ((E5M2, False), (E4M3, True))


def test_values_of_the_wrong_type_are_refused_in_python_too() -> None:
    with pytest.raises(UsageError, match="margin is True, expected an integer"):
        DelayedScaling(margin=True)
    with pytest.raises(UsageError, match=r"amax_history_len is 16\.0, expected an integer"):
        DelayedScaling(amax_history_len=16.0)  # type: ignore[arg-type]
    for recipe in (CurrentScaling, RowWise, BlockScaling):
        with pytest.raises(UsageError, match="power_of_two is 1, expected true or false"):
            recipe(power_of_two=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="amax_epsilon is True, expected a finite number"):
        CurrentScaling(amax_epsilon=True)
