"""Block recipes against every vector, bit for bit; where upstreams disagree, each flavour against its own."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.blocks import QuantizedBlocks, block_amax, quantize_blocks
from fp8debug.formats import E2M1, E4M3, FORMATS, encode
from fp8debug.recipes import MXFP4, MXFP6, MXFP8, NVFP4, BlockScaling, MXRecipe

DATA = Path(__file__).parent / "data"
MX_RECIPES: dict[str, type[MXRecipe]] = {"e4m3": MXFP8, "e5m2": MXFP8, "e3m2": MXFP6, "e2m3": MXFP6, "e2m1": MXFP4}


def load(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def from_bits(text: str) -> npt.NDArray[np.float32]:
    """One line of float32 values."""
    return np.frombuffer(bytes.fromhex(text), dtype=">u4").astype(np.uint32).view(np.float32).reshape(1, -1)


def to_bits(values: npt.NDArray[np.float32]) -> str:
    return "".join(f"{bits:08x}" for bits in values.view(np.uint32).ravel())


def to_hex(codes: npt.NDArray[np.uint8], digits: int) -> str:
    return "".join(f"{code:0{digits}x}" for code in codes.ravel())


MX = load("mx_blocks.json")


def quantize_mx(block: str, fmt: str, rule: str, flavour: str = "exact") -> tuple[int, QuantizedBlocks]:
    """The E8M0 code of the one block, and the block."""
    recipe = MX_RECIPES[fmt](scale_rule=rule, flavour=flavour, fp8_format=fmt.upper())
    blocks = quantize_blocks(from_bits(MX["inputs"][block]), recipe, "x", FORMATS[fmt.upper()])
    return e8m0(blocks.factors.decode), blocks


def e8m0(scale: npt.NDArray[np.float32]) -> int:
    return int(scale.view(np.uint32).item() >> 23)


def test_every_mx_vector() -> None:
    """Scale and codes. Vectors without a code have no rule to follow: NaN and, except under rceil, infinity."""
    assert len(MX["vectors"]) == 296
    checked = Counter[str]()
    for vector in MX["vectors"]:
        code, blocks = quantize_mx(vector["block"], vector["fmt"], vector["rule"])
        if vector["block"] == "nan":
            continue  # the next test
        if vector["scale_e8m0"] is not None:
            assert code == vector["scale_e8m0"], vector
            checked["scale"] += 1
        if vector["codes"] is not None:
            assert to_hex(blocks.codes, 1 if vector["fmt"] == "e2m1" else 2) == vector["codes"], vector
            checked["codes"] += 1
    assert checked == {"scale": 296 - 8 - 5, "codes": 296 - 8 - 5}


@pytest.mark.parametrize(
    "vector", [v for v in MX["vectors"] if v["block"] == "nan"], ids=lambda v: v["fmt"] + v["rule"]
)
def test_a_nan_amax_has_the_code_of_nan(vector: dict[str, Any]) -> None:
    """torchao's amax keeps NaN, so its blocks get that code; the maxima of Transformer Engine's kernels drop it."""
    fmt, rule = vector["fmt"], vector["rule"]
    code, blocks = quantize_mx("nan", fmt, rule, "torchao")
    assert code == vector["scale_e8m0"] == 255
    assert np.isnan(blocks.values).all()
    code, blocks = quantize_mx("nan", fmt, rule)
    x = from_bits(MX["inputs"]["nan"])
    without = np.where(np.isnan(x), np.float32(0), x)
    expected = quantize_blocks(
        without, MX_RECIPES[fmt](scale_rule=rule, fp8_format=fmt.upper()), "x", FORMATS[fmt.upper()]
    )
    assert code == e8m0(expected.factors.decode)
    assert (blocks.values == expected.values)[~np.isnan(x)].all()


def test_the_torchao_flavour_gives_what_torchao_gave_where_it_agreed() -> None:
    agreed = [v for v in MX["vectors"] if "torchao" in v["agree"] and v["codes"] is not None]
    assert len(agreed) > 200
    for vector in agreed:
        code, blocks = quantize_mx(vector["block"], vector["fmt"], vector["rule"], "torchao")
        digits = 1 if vector["fmt"] == "e2m1" else 2
        assert (code, to_hex(blocks.codes, digits)) == (vector["scale_e8m0"], vector["codes"]), vector


def disagreements(impl: str) -> list[dict[str, Any]]:
    return [entry for entry in load("mx_disagreements.json") if entry["impl"] == impl]


def test_every_disagreement_of_torchao_is_matched_by_its_flavour() -> None:
    entries = disagreements("torchao")
    assert len(entries) == 44
    for entry in entries:
        where = entry["block"], entry["fmt"], entry["rule"]
        exact, truth = quantize_mx(*where)
        code, blocks = quantize_mx(*where, "torchao")
        if entry["expected"] == "codes":
            differing = np.flatnonzero(truth.codes != blocks.codes)
            first = (int(differing[0]), *(int(b.codes[0, differing[0]]) for b in (truth, blocks)))
            want = f"{differing.size} element codes differ, first (idx,want,got)={first}"
            assert (entry["got"], code) == (want, exact), entry
        elif entry["expected"].startswith("scale"):
            assert (entry["expected"], entry["got"]) == (f"scale {exact}", f"scale {code}"), entry
        else:
            assert entry["got"] == code == exact, entry


def test_disagreements_of_modelopt_and_deepgemm_where_a_flavour_covers_them() -> None:
    """ModelOpt's rceil is torchao's formula, but loses NaN, which no flavour of ours does: a fault, not a convention.
    DeepGEMM's ue8m0 has no MX recipe; its lower bound of the amax is that of `block:flavour=deepgemm`."""
    by_block = {entry["block"]: entry for entry in disagreements("modelopt")}
    assert by_block.pop("nan")["got"] == "scale 0"
    assert len(by_block) == 2
    for block, entry in by_block.items():
        code, _ = quantize_mx(block, entry["fmt"], entry["rule"], "torchao")
        assert entry["got"] == f"scale {code}"
    deepgemm = disagreements("deepgemm ue8m0")
    assert len(deepgemm) == 3
    for entry in deepgemm:
        blocks = quantize_blocks(from_bits(MX["inputs"][entry["block"]]), BlockScaling(flavour="deepgemm"), "x", E4M3)
        assert e8m0(blocks.factors.decode) == entry["got"]


def test_the_other_disagreements_are_not_ours() -> None:
    """No flavour: compressed-tensors has a rule of its own (even with FP4's threshold for every format, the logarithm
    of an amax of 0), microxcaling's float32 log2 misses powers of two, gfloat stops at NaN and caps infinity."""
    ours = {"torchao": 44, "modelopt": 3, "deepgemm ue8m0": 3}
    others = {"compressed_tensors": 20, "microxcaling": 10, "gfloat": 8}
    assert Counter(entry["impl"] for entry in load("mx_disagreements.json")) == ours | others


def quantize_nvfp4(vector: dict[str, Any], flavour: str) -> tuple[bytes, str, QuantizedBlocks]:
    """E4M3 codes of the block scales, codes of the elements as digits, and all of it."""
    recipe = NVFP4(flavour=flavour)
    x, tensor_amax = from_bits(vector["input_u32"]), float(from_bits(vector["global_amax_u32"]).item())
    blocks = quantize_blocks(x, recipe, "x", E2M1, tensor_amax)
    scales = encode(recipe.block_scales(block_amax(x, recipe.tile("x")), tensor_amax), E4M3)
    return scales.tobytes(), to_hex(blocks.codes, 1), blocks


NVFP4_VECTORS = load("nvfp4_blocks.json")["vectors"]


@pytest.mark.parametrize("vector", NVFP4_VECTORS, ids=lambda v: v["block"])
def test_every_nvfp4_vector(vector: dict[str, Any]) -> None:
    """te and torchao by value, modelopt by how much it differs from te, which is what the vectors say of it."""
    te_scales, te_codes, _ = quantize_nvfp4(vector, "te")
    assert (te_scales.hex(), te_codes) == (vector["te_scale_e4m3"], vector["te_codes"])

    scales, codes, blocks = quantize_nvfp4(vector, "torchao")
    assert scales.hex() == vector["torchao_scale"]
    if vector["block"] == "all_zero":  # 0/0: no E2M1 code means NaN, so what stands there is an accident
        assert np.isnan(blocks.values).all()
    else:
        assert codes == vector["torchao_codes"]

    scales, codes, _ = quantize_nvfp4(vector, "modelopt")
    assert sum(a != b for a, b in zip(scales, te_scales, strict=True)) == vector["vs_te"]["modelopt"]["scale_diff"]
    assert sum(a != b for a, b in zip(codes, te_codes, strict=True)) == vector["vs_te"]["modelopt"]["code_diff"]


def test_there_are_11_nvfp4_vectors_and_some_tell_the_flavours_apart() -> None:
    assert len(NVFP4_VECTORS) == 11
    told = {v["block"]: [v["vs_te"][f]["code_diff"] for f in ("torchao", "modelopt")] for v in NVFP4_VECTORS}
    assert (told["tiny_block"], told["ties"], told["gauss_small"]) == ([16, 16], [24, 0], [1, 0])


def xorshift_values(n: int, seed: int, outlier_stride: int) -> npt.NDArray[np.float32]:
    """Inputs of block_fp8_128.json: four draws summed, bell-shaped, truncated to BF16; then every k-th times 64."""
    state, sums = seed, []
    for _ in range(n):
        total = 0
        for _ in range(4):
            state ^= (state << 13) & 0xFFFFFFFF
            state ^= state >> 17
            state ^= (state << 5) & 0xFFFFFFFF
            total += state >> 16
        sums.append(total - 131070)
    values = np.array(sums, dtype=np.float32) / np.float32(32768)
    values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if outlier_stride:
        values[::outlier_stride] *= np.float32(64)
    return values


@pytest.fixture(scope="module")
def block_inputs() -> dict[str, npt.NDArray[np.float32]]:
    return {
        vector["name"]: xorshift_values(vector["n"], vector["seed"], vector["outlier_stride"]).reshape(vector["shape"])
        for vector in load("block_fp8_128.json")["vectors"]
        if not vector["pow2"]
    }


@pytest.mark.parametrize("vector", load("block_fp8_128.json")["vectors"], ids=lambda v: f"{v['name']}-{v['pow2']}")
@pytest.mark.parametrize(
    ("flavour", "scales", "codes"),
    [
        ("te", "te_scale_inv_u32", "te_codes_sha256"),
        ("deepgemm", "deepgemm_sf_u32", "deepgemm_codes_sha256"),
        ("deepseek", "deepgemm_sf_u32", "deepseek_div_codes_sha256"),
    ],
)
def test_every_128_block_vector(
    vector: dict[str, Any],
    flavour: str,
    scales: str,
    codes: str,
    block_inputs: dict[str, npt.NDArray[np.float32]],
) -> None:
    recipe = BlockScaling(flavour=flavour, power_of_two=vector["pow2"])
    tensor = "w" if vector["tile"] == [128, 128] else "x"
    blocks = quantize_blocks(block_inputs[vector["name"]], recipe, tensor, E4M3)
    assert to_bits(blocks.factors.decode) == vector[scales]
    assert hashlib.sha256(blocks.codes.tobytes()).hexdigest() == vector[codes]
