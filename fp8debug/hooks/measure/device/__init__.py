"""Measuring a tensor where it is, on an accelerator, while the host goes on.

A hook launches kernels on the tensor's own stream; they leave their numbers in a small vector beside it, which a side
stream copies to pinned memory. Nobody waits but a thread of ours, which turns the numbers into what is recorded.
"""

from fp8debug.hooks.measure.device.counter import DeviceCounter, is_on_accelerator
from fp8debug.hooks.measure.device.landing import Arriving
from fp8debug.hooks.measure.device.tally import Reading

__all__ = ["Arriving", "DeviceCounter", "Reading", "is_on_accelerator"]
