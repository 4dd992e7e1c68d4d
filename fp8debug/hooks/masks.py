"""Which rows of a tensor are tokens and which are padding, as the training script says."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fp8debug.errors import UsageError
from fp8debug.replay import Moment

RowMask = Callable[[str, str, int], torch.Tensor | None]
"""(layer, tensor, rows) -> bool tensor of valid rows, or None where nothing is known of them."""

BY_ROWS = ("x", "dy", "y", "dx")
"""Tensors whose rows are tokens."""


_MAX_RANGES = 4


def ranges(mask: torch.Tensor) -> str | None:
    """The rows that are true, both ends included, such as `0-9,100-127`; None when there are none or many ranges."""
    padded = torch.nn.functional.pad(mask.cpu().to(torch.int8), (1, 1))
    edges = torch.nonzero(padded.diff()).flatten().tolist()
    if not 0 < len(edges) <= 2 * _MAX_RANGES:
        return None
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return ",".join(f"{start}-{end - 1}" if end - start > 1 else str(start) for start, end in pairs)


class RowMasks:
    """The masks that hold now.

    A tensor holds for one micro-batch: the one whose first forward follows. Its gradients come later and find the mask
    of their own forward. Nothing is read from an accelerator here.
    """

    def __init__(self) -> None:
        self.n_given = 0
        self.n_used = 0
        self._rule: RowMask | None = None
        self._upcoming: torch.Tensor | None = None
        self._held: dict[tuple[int, int], torch.Tensor] = {}

    def give(self, mask: torch.Tensor | RowMask | None) -> None:
        """Take a mask for the micro-batch that follows, a rule for all that follow, or None: no rows are padding.

        Raises:
            UsageError: neither a bool tensor nor callable.
        """
        self._rule, self._upcoming = None, None
        if mask is None:
            self._held.clear()
            return
        if isinstance(mask, torch.Tensor):
            if mask.dtype is not torch.bool:
                raise UsageError(f"mask: got a tensor of {mask.dtype}; expected torch.bool, true for valid tokens")
            self._upcoming = mask.detach()
        elif callable(mask):
            self._rule = mask
        else:
            raise UsageError(
                f"mask: got {type(mask).__name__}; expected a bool tensor, a callable (layer, tensor, rows) or None"
            )
        self.n_given += 1

    def of(self, layer: str, tensor: str, moment: Moment, value: torch.Tensor) -> torch.Tensor | None:
        """Valid rows of `value`, bool, (rows,), on its device; None where no mask fits."""
        mask = self._mask(layer, tensor, moment, value)
        if tensor not in BY_ROWS or mask is None or value.dim() < 2:
            return None
        if mask.numel() != value.shape[:-1].numel():
            return None
        if mask.dim() == 2 and value.dim() == 3 and mask.shape != value.shape[:2] == mask.T.shape:
            mask = mask.T  # (B, T) beside a sequence-first (T, B, K)
        self.n_used += 1
        return mask.reshape(-1).to(value.device, non_blocking=True)

    def _mask(self, layer: str, tensor: str, moment: Moment, value: torch.Tensor) -> torch.Tensor | None:
        if self._rule is not None:
            rows = value.shape[:-1].numel() if value.dim() else 0
            return self._rule(layer, tensor, rows) if tensor in BY_ROWS else None
        if moment.pass_ == "eval":
            return self._upcoming
        place = (moment.step, moment.microbatch)
        if self._upcoming is not None and moment.pass_ == "forward":
            self._held = {other: mask for other, mask in self._held.items() if other[0] == moment.step}
            self._held[place], self._upcoming = self._upcoming, None
        return self._held.get(place)
