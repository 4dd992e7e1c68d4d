"""torch's dtypes and our formats: the only place where one is turned into the other."""

from __future__ import annotations

import torch

from fp8debug.formats import E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, Format

FP8 = {
    E4M3.name: torch.float8_e4m3fn,
    E5M2.name: torch.float8_e5m2,
    E4M3FNUZ.name: torch.float8_e4m3fnuz,
    E5M2FNUZ.name: torch.float8_e5m2fnuz,
}
"""By name of the format: the FP8 dtypes that torch casts to."""
FP8_DTYPES = frozenset(FP8.values())
WORDS = {
    **{name: str(dtype).removeprefix("torch.") for name, dtype in FP8.items()},
    E3M2.name: "float6_e3m2fn",
    E2M3.name: "float6_e2m3fn",
    E2M1.name: "float4_e2m1fn",
    E8M0.name: "float8_e8m0fnu",
}
"""By name of the format: its dtype in columns, in ml_dtypes' words where torch has none."""
_BY_DTYPE = {
    getattr(torch, WORDS[fmt.name]): fmt
    for fmt in (E4M3, E5M2, E4M3FNUZ, E5M2FNUZ, E8M0)
    if hasattr(torch, WORDS[fmt.name])
}


def format_of(dtype: torch.dtype) -> Format | None:
    """The format whose codes a tensor of this dtype holds; None for high precision."""
    return _BY_DTYPE.get(dtype)


def dtype_word(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")
