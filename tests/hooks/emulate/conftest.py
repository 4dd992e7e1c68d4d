"""What every test of emulation stands on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.optim.optimizer as torch_optimizer


@pytest.fixture(autouse=True)
def no_emulation_left() -> Iterator[None]:
    """An emulation that a test does not end hooks every optimizer of the process, those of later tests too."""
    yield
    torch_optimizer._global_optimizer_pre_hooks.clear()
    torch_optimizer._global_optimizer_post_hooks.clear()
