"""Parameters in FP8 as Transformer Engine pickles them: what its functions rebuild them from.

Arguments are those of `__reduce_ex__` of Float8Tensor, Float8BlockwiseQTensor and MXFP8Tensor in Transformer Engine
2.3 and later, whose DType counts E4M3 as 7 and E5M2 as 8. Copies of the codes by columns, and quantizers, which are
made anew where a model is built, are left out.
"""

from __future__ import annotations

from fp8debug.analysis.checkpoint.quantize.torch_archive import TORCH_DTYPES, Called, Made, Name
from fp8debug.analysis.checkpoint.store.writing import WrittenTensor
from fp8debug.formats import Format

_PACKAGE = "transformer_engine.pytorch.tensor"
_NUMBERS = {"E4M3": 7, "E5M2": 8}


def te_tensor(codes: WrittenTensor, scale_inv: WrittenTensor, recipe: str, fmt: Format, dtype: str) -> Called:
    """A quantised parameter.

    Args:
        codes: as U8.
        scale_inv: F32 for current and block, E8M0 as U8 for mxfp8.
        recipe: its kind.
        fmt: of the codes.
        dtype: that the parameter had before, in the spelling of safetensors.
    """
    element = Made(Name("transformer_engine_torch", "DType"), _NUMBERS[fmt.name])
    before = Name("torch", TORCH_DTYPES[dtype])
    shape = Called(Name("torch", "Size"), (codes.shape,))
    if recipe == "block":
        rebuild = Name(f"{_PACKAGE}.float8_blockwise_tensor", "_make_float8_blockwise_tensor_in_reduce_ex")
        return Called(rebuild, (shape, codes, scale_inv, None, None, element, before, None, True))
    if recipe == "mxfp8":
        rebuild = Name(f"{_PACKAGE}.mxfp8_tensor", "_make_mxfp8_tensor_in_reduce_ex")
        return Called(rebuild, (codes, scale_inv, None, None, element, before, shape, None, False))
    rebuild = Name(f"{_PACKAGE}.float8_tensor", "_make_float8_tensor_in_reduce_ex")
    return Called(rebuild, (codes, element, scale_inv, before, shape))
