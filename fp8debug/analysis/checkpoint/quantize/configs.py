"""What configurations and headers say of a quantised checkpoint, dialect by dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp8debug.analysis.checkpoint.quantize.casting import CastRecipe
from fp8debug.analysis.checkpoint.quantize.forms import Form
from fp8debug.analysis.checkpoint.quantize.spelling import Spelled
from fp8debug.analysis.checkpoint.quantize.te_tensors import te_tensor
from fp8debug.analysis.checkpoint.quantize.torch_archive import Called
from fp8debug.analysis.checkpoint.quantize.torchao_header import torchao_header
from fp8debug.formats import Format
from fp8debug.recipes import BlockScaling

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """What has been made, for its description."""

    form: Form
    recipe: CastRecipe
    fmt: Format
    weights: Sequence[Spelled]
    """What is quantised."""
    plain: Sequence[str]
    """Names of all other tensors."""
    ignored: Sequence[str]
    """Names of modules that a reader would take for quantised ones, but are not."""


@dataclass(frozen=True, slots=True)
class Description:
    """What is written beside the tensors."""

    quantization_config: Json | None = None
    """For config.json; None: it says nothing."""
    files: Mapping[str, Json] | None = None
    """Further JSON files, by name."""
    metadata: Mapping[str, str] | None = None
    """Texts of the header."""
    classes: Mapping[str, Called] | None = None
    """In a file of torch.save, the parameters that are no plain tensors."""


def describe(made: Made) -> Description:
    """The description that the dialect asks for."""
    return _DESCRIBED[made.form.dialect](made)


def _deepseek(made: Made) -> Description:
    config: Json = {"activation_scheme": "dynamic", "fmt": made.fmt.name.lower(), "quant_method": "fp8"}
    if made.form.recipe == "block":
        config["weight_block_size"] = [128, 128]
        if isinstance(made.recipe, BlockScaling) and made.recipe.power_of_two:
            config["scale_fmt"] = "ue8m0"
    elif made.form.recipe == "mxfp8":
        config |= {"weight_block_size": [1, 32], "scale_fmt": "ue8m0"}
    return Description({**config, "modules_to_not_convert": list(made.ignored)})


def _fp8(made: Made) -> Description:
    """AutoFP8 for one scale a tensor, FBGEMM for one a line."""
    ignored = list(made.ignored)
    if made.form.recipe == "rowwise":
        return Description({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ignored})
    return Description({"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ignored})


def _compressed_tensors(made: Made) -> Description:
    layouts: Mapping[str, Json] = {
        "current": {"strategy": "tensor"},
        "rowwise": {"strategy": "channel"},
        "block": {"strategy": "block", "block_structure": [128, 128]},
        "mxfp8": {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
        "mxfp4": {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
        "nvfp4": {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
    }
    named = {"mxfp8": "mxfp8-quantized", "mxfp4": "mxfp4-pack-quantized", "nvfp4": "nvfp4-pack-quantized"}
    weights: Json = {"num_bits": made.fmt.bits, "type": "float", "symmetric": True, "dynamic": False}
    weights |= layouts[made.form.recipe]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return Description(
        {
            "quant_method": "compressed-tensors",
            "format": named.get(made.form.recipe, "float-quantized"),
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(made.ignored),
            "kv_cache_scheme": None,
        }
    )


def _modelopt(made: Made) -> Description:
    algorithm = {"current": "FP8", "rowwise": "FP8_PER_CHANNEL_PER_TOKEN", "block": "FP8_PB_WO"}
    quantization: Json = {
        "quant_algo": algorithm.get(made.form.recipe, made.form.recipe.upper()),
        "kv_cache_quant_algo": None,
        "exclude_modules": list(made.ignored),
    }
    sizes = {"mxfp8": 32, "nvfp4": 16}
    if made.form.recipe in sizes:
        quantization["group_size"] = sizes[made.form.recipe]
    return Description(files={"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": quantization}})


def _quark(made: Made) -> Description:
    schemes: Mapping[str, Json] = {
        "current": {"qscheme": "per_tensor"},
        "rowwise": {"qscheme": "per_channel", "ch_axis": 0},
    }
    if made.form.recipe == "mxfp4":
        weight: Json = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "ch_axis": -1}
    else:
        weight = {"dtype": f"fp8_{made.fmt.name[:4].lower()}", **schemes[made.form.recipe]}
    groups = {"weight": {**weight, "is_dynamic": False}, "input_tensors": None, "output_tensors": None, "bias": None}
    return Description(
        {
            "quant_method": "quark",
            "global_quant_config": groups,
            "layer_quant_config": {},
            "exclude": list(made.ignored),
            "export": {"pack_method": "reorder", "weight_format": "real_quantized"},
        }
    )


def _comfyui(made: Made) -> Description:
    named = {"E4M3": "float8_e4m3fn", "E5M2": "float8_e5m2"}[made.fmt.name] if made.form.recipe == "current" else ""
    layers = {one.named("").removesuffix("."): {"format": named or made.form.recipe} for one in made.weights}
    return Description(metadata={"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})})


def _gpt_oss(made: Made) -> Description:
    return Description({"quant_method": "mxfp4", "modules_to_not_convert": list(made.ignored)})


def _torchao(made: Made) -> Description:
    weights = [one.cast.stored for one in made.weights]
    return Description(metadata=torchao_header(weights, made.form.recipe, made.fmt, made.plain))


def _te(made: Made) -> Description:
    classes = {}
    for one in made.weights:
        codes, scale_inv = one.tensors()
        classes[codes.name] = te_tensor(codes, scale_inv, made.form.recipe, made.fmt, one.cast.stored.dtype)
    return Description(classes=classes)


def _nothing(made: Made) -> Description:
    """No word: about scales that are not there, or that have names that everybody uses."""
    return Description()


_DESCRIBED: Mapping[str, Callable[[Made], Description]] = {
    "deepseek": _deepseek,
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "quark": _quark,
    "comfyui": _comfyui,
    "gpt-oss": _gpt_oss,
    "torchao": _torchao,
    "te": _te,
    "cast": _nothing,
    "multiplies": _nothing,
    "divides": _nothing,
}
