"""One tensor of one layer, looked at closely."""

from fp8debug.analysis.operand.gathering import look
from fp8debug.analysis.operand.names import layer_named, tensors_named
from fp8debug.analysis.operand.records import Channels, Course, Facts, Fit, Operand, Payload, Standing, Told

__all__ = [
    "Channels",
    "Course",
    "Facts",
    "Fit",
    "Operand",
    "Payload",
    "Standing",
    "Told",
    "layer_named",
    "look",
    "tensors_named",
]
