"""In what precision the layers of a run did their GEMMs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fp8debug.analysis.checkpoint.ran.layers import matched_layers
from fp8debug.analysis.checkpoint.records import Convention
from fp8debug.analysis.run import Run


def precision_of_run(run: Run, modules: Iterable[str]) -> Mapping[str, str]:
    """By module, what GEMMs of a run read of its weight: a format such as E4M3, or a dtype such as bfloat16.

    Modules that the run does not have are not in it. A layer that ever read codes counts as one that does.
    """
    rows = run.sql(
        """
        select layer, coalesce(max(payload_fmt(dtype)), arg_max(gemm_dtype, (segment, step))) as ran
        from records
        where tensor = 'w' and pass <> 'eval'
        group by layer
        order by min(seq)
        """
    ).fetchall()
    known = {layer: ran for layer, ran in rows if ran is not None}
    return {module: known[layer] for layer, module in matched_layers(known, modules).items()}


def modules_of(convention: Convention) -> tuple[str, ...]:
    """Modules that have a weight, quantised or not."""
    plain = (name.removesuffix(".weight") for name in convention.plain if name.endswith(".weight"))
    return tuple(dict.fromkeys([*(one.module for one in convention.quantised), *plain]))
