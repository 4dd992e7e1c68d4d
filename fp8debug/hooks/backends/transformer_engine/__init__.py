"""Capture under NVIDIA's Transformer Engine, by its own debug API; nothing of it is imported here."""

from __future__ import annotations

from fp8debug.hooks.backends.transformer_engine.backend import TransformerEngineBackend
from fp8debug.hooks.backends.transformer_engine.early import forget, prepare
from fp8debug.hooks.backends.transformer_engine.feature import FEATURE_DIR
from fp8debug.hooks.backends.transformer_engine.inspection import debug_config

__all__ = ["FEATURE_DIR", "TransformerEngineBackend", "debug_config", "forget", "prepare"]
