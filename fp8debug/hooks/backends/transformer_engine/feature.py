"""The feature that Transformer Engine's debug API calls, and whom it tells.

`nvdlfw_inspect` ends the process on an AttributeError out of a feature, and any other error reaches the training: so
everything is caught in here, and the answer is then the one that Transformer Engine gives without features.

Only the two methods that are ours are APIs of the feature. For all others, such as `fp8_gemm_enabled` and
`modify_tensor_enabled`, Transformer Engine's own defaults answer, or the features that the user has turned on: of
`modify_tensor` it allows one a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

FEATURE = "Fp8Debug"
FEATURE_DIR = Path(__file__).with_name("features")
"""For `nvdlfw_inspect.api.initialize(feature_dirs=[...])`, beside Transformer Engine's own."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Receiver(Protocol):
    """Who decides and who takes."""

    def when(self, layer_name: str, tensor_name: str) -> tuple[bool, int | None]:
        """Whether the tensor is wanted in this pass, and in how many steps to ask again at the latest (None: never)."""

    def inspect(self, layer_name: str, tensor_name: str, tensor: Any, quantized: Any, quantizer: Any) -> None:
        """Take a tensor."""

    def fail(self, error: Exception) -> None:
        """An error of ours: fall silent for good."""


class Link:
    """Whom the feature tells; the feature itself is made by `nvdlfw_inspect`."""

    receiver: Receiver | None = None


LINK = Link()


def _api(function: Function) -> Function:
    """What `nvdlfw_inspect.registry.api_method` does, without importing it."""
    function.is_api = True  # type: ignore[attr-defined]
    return function


class Fp8Debug:
    """Hands the operands of every GEMM, in high precision and quantised, to fp8debug.

    Config: `Fp8Debug: {enabled: True}`; which layers, tensors and steps is fp8debug's own business.
    """

    def parse_config_and_api(self, config: Any, **kwargs: Any) -> tuple[bool, None]:
        """Every tensor of every GEMM is ours to be asked about."""
        return True, None

    @_api
    def inspect_tensor_enabled(
        self, config: Any, layer_name: str, tensor_name: str, iteration: int = 0, **kwargs: Any
    ) -> bool | tuple[bool, int | None]:
        """Whether the tensor is wanted now, and the iteration at which to ask again."""
        receiver, wanted, within = LINK.receiver, False, None
        try:
            if receiver is not None:
                wanted, within = receiver.when(layer_name, tensor_name)
        except Exception as error:  # ours, never the training's
            _fail(receiver, error)
            wanted, within = False, None
        if not _answers_are_pairs():
            return wanted
        return wanted, (None if within is None else int(iteration) + within)

    @_api
    def inspect_tensor(
        self,
        config: Any,
        layer_name: str,
        tensor_name: str,
        tensor: torch.Tensor | None = None,
        rowwise_quantized_tensor: Any = None,  # Transformer Engine passes on what a feature has a name for
        columnwise_quantized_tensor: Any = None,
        quantizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Take the tensor."""
        receiver = LINK.receiver
        try:
            if receiver is not None:
                both = (rowwise_quantized_tensor, columnwise_quantized_tensor)
                receiver.inspect(
                    layer_name, tensor_name, tensor, next((q for q in both if q is not None), None), quantizer
                )
        except Exception as error:  # ours, never the training's
            _fail(receiver, error)


def _fail(receiver: Receiver | None, error: Exception) -> None:
    LINK.receiver = None
    try:
        if receiver is not None:
            receiver.fail(error)
    except Exception:  # nothing is left to tell it to
        return


def _answers_are_pairs() -> bool:
    """Whether this Transformer Engine takes (bool, next iteration); to older ones a pair is True, or an error."""
    try:
        api = sys.modules["nvdlfw_inspect.registry"].Registry.data["transformer_engine"].api
        answer = api._default_api_impl.inspect_tensor_enabled({}, layer_name="", tensor_name="activation", iteration=0)
        return isinstance(answer, tuple)
    except Exception:  # made in another way than is known here: as the newest do
        return True
