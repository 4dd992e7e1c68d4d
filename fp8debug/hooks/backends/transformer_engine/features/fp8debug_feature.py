"""Loaded by `nvdlfw_inspect`, which executes every file in here: registers our feature."""

from __future__ import annotations

from nvdlfw_inspect.registry import Registry

from fp8debug.hooks.backends.transformer_engine.feature import Fp8Debug

Registry.register_feature(namespace="transformer_engine")(Fp8Debug)
