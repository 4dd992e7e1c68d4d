"""Which column of somebody's log is which: the spellings of loggers and frameworks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SPELLINGS: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "iteration", "iter", "steps", "iterations", "it", "optimizer_step", "num_updates"),
    "loss": ("loss", "lm_loss", "global_avg_loss", "reduced_loss", "reduced_train_loss", "loss_train", "total_loss",
             "cross_entropy", "ce_loss", "nll", "nll_loss", "value"),
    "grad_norm": ("grad_norm", "gradnorm", "gradient_norm", "global_grad_norm", "total_grad_norm", "total_norm",
                  "gnorm", "grads_norm", "gradients_norm"),
    "lr": ("lr", "learning_rate", "lr_0", "learning_rate_0"),
    "tokens": ("tokens", "n_tokens", "batch_tokens", "tokens_per_step", "tokens_per_batch", "step_tokens", "ntokens"),
    "total_tokens": ("total_tokens", "tokens_seen", "consumed_tokens", "num_input_tokens_seen", "n_tokens_seen",
                     "cumulative_tokens", "tokens_total"),
}  # fmt: skip
"""What is looked for, and how it may be written: best first, in small letters, everything else than those as `_`."""

_PREFIX = re.compile(r"^(train|training|trainer|metrics|optim|optimizer|loss_metrics|grads|lr_adamw)_(?=.)")


@dataclass(frozen=True, slots=True)
class Columns:
    """Names in a file, None where it has none."""

    step: str | None
    loss: str | None
    grad_norm: str | None
    lr: str | None
    tokens: str | None
    total_tokens: str | None

    @property
    def taken(self) -> dict[str, str]:
        """What was found, by our name."""
        names = {name: getattr(self, name) for name in Columns.__slots__}
        return {name: column for name, column in names.items() if column is not None}


def find_columns(names: Sequence[str]) -> Columns:
    """Choose among the names of a file; names of validation are never taken for those of training."""
    usable = [name for name in names if not re.search(r"(^|[^a-z])(val|valid|validation|eval|test|min|max)([^a-z]|$)",
                                                      name.lower().replace("__", " "))]  # fmt: skip
    return Columns(**{wanted: _find(usable, spellings) for wanted, spellings in SPELLINGS.items()})


def _find(names: Sequence[str], spellings: Sequence[str]) -> str | None:
    """The best spelling; the exact name before one with a prefix, such as `train/loss` or `my run - loss`."""
    for spelling in spellings:
        for forms in (_plain, _without_prefix, _after_dash):
            for name in names:
                if forms(name) == spelling:
                    return name
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _without_prefix(name: str) -> str:
    plain = _plain(name)
    while (short := _PREFIX.sub("", plain)) != plain:
        plain = short
    return plain


def _after_dash(name: str) -> str:
    """What tables exported from dashboards call `run name - train/loss`."""
    return _without_prefix(name.rpartition(" - ")[2])
