"""Stand-in: the namespace that `nvdlfw_inspect` routes calls of modules through."""

from __future__ import annotations

from typing import Any

import torch
from nvdlfw_inspect.base import BaseConfigAPIMapper, BaseNamespaceAPI
from nvdlfw_inspect.registry import Registry, api_method
from transformer_engine.debug.pytorch.debug_state import TEDebugState

_GEMM_CALLS = ("fp8_gemm_enabled", "modify_tensor_enabled", "modify_tensor")


class Defaults:
    """What is answered where no feature of a layer's config has the call."""

    def fp8_gemm_enabled(self, config: Any, layer_name: str, **kwargs: Any) -> tuple[bool, int | None]:
        return True, None

    def modify_tensor_enabled(self, config: Any, layer_name: str, **kwargs: Any) -> tuple[bool, int | None]:
        return False, None

    def inspect_tensor_enabled(self, config: Any, layer_name: str, **kwargs: Any) -> tuple[bool, int | None]:
        return False, None

    def inspect_tensor(self, config: Any, layer_name: str, **kwargs: Any) -> None:
        return None


@Registry.register_namespace_api(namespace="transformer_engine")
class TransformerEngineAPI(BaseNamespaceAPI):
    """Routes by tensor, and by GEMM where a call has one."""

    def __init__(self) -> None:
        super().__init__()
        self._default_api_impl = Defaults()
        self._cacheable_api_kwargs_map = {
            "inspect_tensor": ["tensor_name"],
            "inspect_tensor_enabled": ["tensor_name", "iteration"],
            "modify_tensor_enabled": ["tensor_name"],
        }

    def is_multiple_feature_invocation_allowed(self, api_name: str) -> bool:
        return not api_name.startswith("modify_tensor")

    def input_assertions_hook(self, api_name: str, **kwargs: Any) -> None:
        assert "gemm" in kwargs or api_name not in _GEMM_CALLS
        assert "tensor_name" in kwargs or api_name == "fp8_gemm_enabled"

    def routing_condition(self, api_name: str, config: Any, _: str, feature_obj: Any, **kwargs: Any) -> Any:
        return feature_obj.parse_config_and_api(
            config, gemm_parsing=api_name in _GEMM_CALLS, tensor_parsing=api_name != "fp8_gemm_enabled", **kwargs
        )

    def output_assertions_hook(self, api_name: str, ret: Any, **kwargs: Any) -> None:
        if api_name.endswith("_enabled"):
            assert isinstance(ret, (bool, tuple))
        if api_name == "inspect_tensor":
            assert ret is None

    def call_feature(self, call: Any, feat_config: Any, layer_name: str, **kwargs: Any) -> Any:
        if call.__name__ == "inspect_tensor":
            optional = ("quantizer", "columnwise_quantized_tensor", "rowwise_quantized_tensor", "tp_size")
            dropped = [name for name in optional if name not in call.__code__.co_varnames]
            kwargs = {name: value for name, value in kwargs.items() if name not in dropped}
        return call(feat_config, layer_name, **kwargs)

    def handle_multi_feature_output(self, api_name: str, outputs: Any, features: Any, **kwargs: Any) -> Any:
        if api_name.endswith("_enabled"):
            nexts = [answer[1] for answer in outputs if answer[1] is not None]
            return any(answer[0] for answer in outputs), min(nexts, default=None)
        return super().handle_multi_feature_output(api_name, outputs, features, **kwargs)

    def end_debug(self) -> None:
        TEDebugState._reset()


@Registry.register_feature(namespace="transformer_engine")
class CountCalls(BaseConfigAPIMapper):
    """A feature of the user's: counts the tensors that it is shown."""

    shown: dict[str, int] = {}  # noqa: RUF012

    def parse_config_and_api(self, config: Any, **kwargs: Any) -> Any:
        chosen = self._process_tensor_config(dict(config), kwargs["tensor_name"])
        return bool(chosen), chosen

    @api_method
    def inspect_tensor_enabled(self, config: Any, layer_name: str, tensor_name: str, iteration: int) -> Any:
        return True, iteration + 1

    @api_method
    def inspect_tensor(
        self, config: Any, layer_name: str, tensor_name: str, tensor: torch.Tensor, iteration: int, tp_group: Any
    ) -> None:
        key = f"{layer_name}.{tensor_name}"
        self.shown[key] = self.shown.get(key, 0) + 1
