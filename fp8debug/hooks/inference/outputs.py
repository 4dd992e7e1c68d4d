"""What a forward returned: the loss and the logits in it, and how far two sets of logits are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fp8debug.hooks.inference.batch import Batch
from fp8debug.hooks.inference.noise import Noise

_CHUNK_VALUES = 1 << 22
_IGNORED = -100
"""Label that cross_entropy passes over."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Loss and logits of one forward."""

    loss: float | None
    loss_source: str
    """Where the loss is from, in words; why there is none."""
    values: Tensor
    """(positions, N) on the host: logits, or whatever the model returns."""
    are_logits: bool
    """Whether there is a loss of them, or a name, that says so."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far the outputs of one forward are from the reference's."""

    noise: Noise
    max_difference: float
    """Largest absolute difference."""
    n_positions: int
    argmax_changed: float | None
    """Share of the positions whose largest logit is another one; None: they are no logits."""
    mean_kl: float | None
    """Mean over positions of KL(reference || this one), nats; None: they are no logits."""


def read_outputs(returned: object, batch: Batch, last: Tensor | None) -> Outputs | None:
    """Find loss and logits in what the model returned.

    Args:
        batch: what it was run on; its labels give the loss where the model returns none.
        last: output of the last GEMM layer, the logits of a model that returns a loss alone.

    Returns:
        None when there is no output to compare.
    """
    found = _tensors(returned)
    loss = found.get("loss")
    if loss is None:
        loss = next((t for t in found.values() if t.dim() <= 1 and t.numel() == 1), None)
    logits = found.get("logits")
    if logits is None:
        logits = next((t for t in found.values() if t.dim() >= 2), last)
    if logits is None or logits.numel() == 0:
        return None
    are_logits = "logits" in found
    source = "as the model returns it"
    if loss is None:
        loss, source = _cross_entropy(logits, batch)
    shown = logits.reshape(-1, logits.shape[-1])
    mask = batch.mask
    if mask is not None and mask.shape == logits.shape[:-1]:
        shown = shown[mask.reshape(-1) != 0]
    return Outputs(
        None if loss is None else float(loss),
        source,
        shown.detach().cpu(),
        are_logits=shown.shape[-1] > 1 and (are_logits or loss is not None),
    )


def difference(reference: Outputs, other: Outputs) -> Difference:
    """Compare two sets of logits, position by position, in chunks of bounded memory."""
    noise, largest, changed, divergence = Noise(), 0.0, 0, 0.0
    n_positions, width = reference.values.shape
    for ours, theirs in zip(*(_chunks(o.values, width) for o in (reference, other)), strict=True):
        noise.add(ours, theirs)
        a, b = ours.float(), theirs.float()
        finite = torch.isfinite(a - b)
        largest = max(largest, float((a - b)[finite].abs().max())) if finite.any() else largest
        if reference.are_logits:
            changed += int((a.argmax(-1) != b.argmax(-1)).sum())
            log_p, log_q = functional.log_softmax(a.double(), -1), functional.log_softmax(b.double(), -1)
            divergence += float(functional.kl_div(log_q, log_p, log_target=True, reduction="sum"))
    told = reference.are_logits and n_positions > 0
    return Difference(
        noise,
        largest,
        n_positions,
        argmax_changed=changed / n_positions if told else None,
        # Rounding may leave a divergence of nothing a trace below zero.
        mean_kl=max(0.0, divergence / n_positions) if told else None,
    )


def _chunks(values: Tensor, width: int) -> tuple[Tensor, ...]:
    return tuple(torch.split(values, max(1, _CHUNK_VALUES // max(1, width))))


def _tensors(returned: object) -> dict[str, Tensor]:
    """Floating tensors of what was returned, by name or number."""
    items: dict[str, Any] = {}
    if isinstance(returned, Tensor):
        items = {"output": returned}
    elif isinstance(returned, Mapping):
        items = {str(name): value for name, value in returned.items()}
    elif isinstance(returned, (tuple, list)):
        items = {str(place): value for place, value in enumerate(returned)}
    elif is_dataclass(returned):
        items = {entry.name: getattr(returned, entry.name) for entry in fields(returned)}
    return {name: t for name, t in items.items() if isinstance(t, Tensor) and t.is_floating_point()}


def _cross_entropy(logits: Tensor, batch: Batch) -> tuple[Tensor | None, str]:
    """Of the labels; where there are none, of the tokens themselves, each predicting the next."""
    tokens, labels = batch.tokens, batch.labels
    fits = [t for t in (labels, tokens) if t is not None and t.shape == logits.shape[:-1] and t.dtype is torch.int64]
    if not fits or int(fits[0].max()) >= logits.shape[-1]:
        return None, "the model returns none, and the batch has no labels that fit the logits"
    wanted, source = fits[0], "cross entropy of the labels"
    if wanted is tokens and batch.mask is not None and batch.mask.shape == wanted.shape:
        wanted = wanted.masked_fill(batch.mask == 0, _IGNORED)
    # Labels that repeat the tokens are meant to be shifted, as the models of transformers do.
    if wanted.dim() > 1 and _repeats(wanted, tokens):
        logits, wanted, source = logits[..., :-1, :], wanted[..., 1:], "cross entropy of the next token"
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return functional.cross_entropy(flat, wanted.reshape(-1)), source


def _repeats(labels: Tensor, tokens: Tensor | None) -> bool:
    return tokens is not None and tokens.shape == labels.shape and bool(((labels == tokens) | (labels < 0)).all())
