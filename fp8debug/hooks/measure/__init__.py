"""Measuring: what is learnt of a tensor while it is at hand. Nothing here keeps a tensor alive."""

from fp8debug.hooks.measure.engine import Counted, Engine, UnsupportedDtype, load_engine
from fp8debug.hooks.measure.health import Health, nonfinite_rows

__all__ = ["Counted", "Engine", "Health", "UnsupportedDtype", "load_engine", "nonfinite_rows"]
