"""The inference check of `fp8debug verify --inference`."""

from __future__ import annotations


def inference_check(source: str, batch: str | None, recipe: str, *, plan: str | None, as_json: bool) -> int:
    """Compare a model's outputs in high precision with those in emulated FP8, and print where they part.

    Args:
        source: a script, or a model as `fp8debug verify` takes it.
        batch: file of the batch; None: a script's first batch.
        recipe: as `--recipe` is given.
        plan: a fallback plan's file.
        as_json: print one JSON object.

    Returns:
        The exit code.

    Raises:
        Fp8DebugError: there is no such model, script, batch, recipe or plan.
    """
    raise NotImplementedError
