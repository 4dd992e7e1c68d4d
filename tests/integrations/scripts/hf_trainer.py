"""A tiny Llama under the Hugging Face Trainer; prints the losses that the Trainer logs and a digest of the weights."""

from __future__ import annotations

import argparse
import hashlib
import json
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """32 sequences of 8 tokens."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(32, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--callback", help="run directory of a capture by our callback")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint of another start")
    parser.add_argument("--save", type=int, default=0, help="save a checkpoint every this many steps")
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        use_cache=False,
    )
    arguments: dict[str, Any] = {
        "output_dir": "checkpoints",
        "use_cpu": True,
        "max_steps": options.steps,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "logging_steps": 1,
        "save_strategy": "steps" if options.save else "no",
        "save_steps": options.save or 500,
        "eval_strategy": "steps" if options.evaluate else "no",
        "eval_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "bf16": options.bf16,
        "gradient_checkpointing": options.checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if options.checkpointing else None,
    }
    callbacks: list[TrainerCallback] = []
    if options.callback:
        from fp8debug.integrations.hf import Fp8DebugCallback

        callbacks.append(Fp8DebugCallback(run_dir=options.callback, every=1, raw_every=1, tensors="x,w,dy,dw"))
    model = LlamaForCausalLM(config)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**arguments),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=options.resume or None)
    if trainer.is_world_process_zero():
        digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        gradients = {name: [float(entry["grad_norm"]) for entry in logged] for name in ("norms",)}
        print(json.dumps({"losses": [entry["loss"] for entry in logged], "weights": digest, **gradients}))


if __name__ == "__main__":
    main()
