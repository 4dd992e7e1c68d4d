"""A small net in an Accelerate loop; prints its losses."""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import AORecipeKwargs
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", choices=("before", "after"))
    parser.add_argument("--run", default="run")
    parser.add_argument("--fp8", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    model: Any = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU())))
    settings: dict[str, Any] = {"cpu": True, "gradient_accumulation_steps": 2}
    if options.fp8:
        settings |= {"mixed_precision": "fp8", "kwargs_handlers": [AORecipeKwargs()]}
    accelerator = Accelerator(**settings)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    session = watch(model, options.run) if options.attach == "before" else None
    model, optimizer = accelerator.prepare(model, optimizer)
    session = watch(model, options.run) if options.attach == "after" else session
    data = torch.randn(8, 16, 32, generator=torch.Generator().manual_seed(1))
    losses = []
    for batch in data:
        with accelerator.accumulate(model):
            loss = model(batch).float().square().mean()
            losses.append(loss.item())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if session is not None:
        print(json.dumps(session.close().problems))
    print(json.dumps(losses))


def watch(model: nn.Module, run: str) -> Any:
    import fp8debug

    return fp8debug.attach(model, every=1, run_dir=run, quiet=True)


if __name__ == "__main__":
    main()
