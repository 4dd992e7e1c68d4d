"""A run for other tools: TensorBoard, Weights & Biases, Prometheus; and the rows of a view for any other."""

from __future__ import annotations

from fp8debug.analysis.export.narrowing import Narrowing
from fp8debug.analysis.export.openmetrics import openmetrics_lines
from fp8debug.analysis.export.rows import DEFAULT_VIEW, nothing_selected, rows_of_view
from fp8debug.analysis.export.scalars import Operand, Reading, Scalar, readings, scalars_of
from fp8debug.analysis.export.tensorboard import write_tensorboard
from fp8debug.analysis.export.wandb_offline import write_wandb

__all__ = [
    "DEFAULT_VIEW",
    "Narrowing",
    "Operand",
    "Reading",
    "Scalar",
    "nothing_selected",
    "openmetrics_lines",
    "readings",
    "rows_of_view",
    "scalars_of",
    "write_tensorboard",
    "write_wandb",
]
