"""Measuring: what is learnt of a tensor while it is at hand. Nothing here keeps a tensor alive."""

from fp8debug.hooks.measure.engine import Counted, Engine, UnsupportedDtype
from fp8debug.hooks.measure.health import Health, nonfinite_rows
from fp8debug.hooks.measure.loading import load_engine

__all__ = ["Counted", "Engine", "Health", "UnsupportedDtype", "load_engine", "nonfinite_rows"]
