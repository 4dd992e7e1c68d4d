"""Train the small GPT of train_gpt.py with Lightning under capture. CPU, about a minute.

    python examples/lightning_gpt.py && fp8debug report        # once before: pip install 'fp8debug[lightning]'

The model is the module's attribute `net`; `strip_prefix` takes that word off the names of layers.
"""

from __future__ import annotations

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from train_gpt import build_model, load_text

from fp8debug.integrations.lightning import Fp8DebugCallback


class ByteModel(LightningModule):  # type: ignore[misc]  # lightning is not typed here
    """Next-byte prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build_model("gelu")

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        (window,) = batch
        logits = self.net(window[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT with Lightning.")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    options = parser.parse_args()
    torch.manual_seed(0)
    text = load_text(4_000_000)
    windows = text[: len(text) // 129 * 129].view(-1, 129).long()
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=options.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        callbacks=[Fp8DebugCallback(every=10, strip_prefix="net.")],
    )
    trainer.fit(ByteModel(), DataLoader(TensorDataset(windows), batch_size=16, shuffle=True))


if __name__ == "__main__":
    main()
