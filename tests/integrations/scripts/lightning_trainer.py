"""A small net under Lightning; prints the losses that it logs and a digest of the weights."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Lit(LightningModule):  # type: ignore[misc]
    """Two layers with an attribute of the user's around them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch).square().mean()
        self.losses.append(float(loss))
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.net(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--callback", help="run directory of a capture by our callback")
    parser.add_argument("--strip", action="store_true")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    callbacks: list[Callback] = []
    if options.callback:
        from fp8debug.integrations.lightning import Fp8DebugCallback

        prefix = "net." if options.strip else ""
        callbacks.append(
            Fp8DebugCallback(run_dir=options.callback, every=1, raw_every=1, tensors="x,w,dy,dw", strip_prefix=prefix)
        )
    if options.fail:
        callbacks.append(Failing())
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": options.devices,
        "precision": options.precision,
        "max_steps": 3,
        "accumulate_grad_batches": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "gradient_clip_val": 1.0,
        "callbacks": callbacks,
    }
    model = Lit()
    data: Any = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    Trainer(**settings).fit(
        model, torch.utils.data.DataLoader(data, batch_size=2), torch.utils.data.DataLoader(data, batch_size=8)
    )
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(json.dumps({"losses": model.losses, "weights": digest}))


class Failing(Callback):  # type: ignore[misc]
    """Stops the training in the middle."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            raise SystemExit("stopped by the test")


if __name__ == "__main__":
    main()
