"""In what precision the layers of a run did their GEMMs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fp8debug.analysis.run import open_run


def precision_of_run(path: str | Path) -> Mapping[str, str]:
    """By layer, what its GEMMs read of the weight: a format such as E4M3, or a dtype such as bfloat16.

    A layer that ever read codes counts as one that does.
    """
    with open_run(path) as run:
        rows = run.sql(
            """
            select layer, coalesce(max(payload_fmt(dtype)), arg_max(gemm_dtype, (segment, step))) as ran
            from records
            where tensor = 'w' and pass <> 'eval'
            group by layer
            order by min(seq)
            """
        ).fetchall()
    return {layer: ran for layer, ran in rows if ran is not None}
