"""How fast a checkpoint is audited, and in how much memory.

    python benchmarks/checkpoint_audit.py [--gb 2] [--sparse-gb 50] [--sparse-whole] [--check] [--markdown FILE]

A synthetic checkpoint in the shape of DeepSeek-V3 (E4M3 codes, one FP32 scale for 128 x 128 of them) is written into a
temporary folder and audited in a fresh process each time: with all bytes read, and with headers alone. A second file
says that it holds far more, and takes next to no room, since its codes were never written: zeros to whoever reads them.
Rates are codes a second of CPU time. With `--check` exit code 1 where 1 GB/s a core is missed, or 1 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from itertools import count
from pathlib import Path

import numpy as np
from pages import machine, replace_section

from fp8debug import audit_checkpoint
from fp8debug.analysis.checkpoint.store.writing import WrittenTensor, write_sharded
from fp8debug.formats import FORMATS, Float32Array, Uint8Array, encode

BLOCK = 128
LEAST_GB_S, MOST_MB = 1.0, 1000
CONFIG = {
    "model_type": "deepseek_v3",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    },
}
ATTENTION = {
    "q_a_proj": (1536, 7168), "q_b_proj": (24576, 1536), "kv_b_proj": (32768, 512), "o_proj": (7168, 16384)
}  # fmt: skip
EXPERT = {"gate_proj": (2048, 7168), "up_proj": (2048, 7168), "down_proj": (7168, 2048)}
N_EXPERTS = 16
HIDDEN = 7168
_SHARD_BYTES = 4_300_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What one audit took."""

    n_bytes: int
    n_tensors: int
    cpu_s: float
    wall_s: float
    peak_mb: float
    n_findings: int


def weights() -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of the quantised weights of an endless model."""
    for layer in count():
        yield from ((f"model.layers.{layer}.self_attn.{name}.weight", shape) for name, shape in ATTENTION.items())
        for expert in range(N_EXPERTS):
            path = f"model.layers.{layer}.mlp.experts.{expert}"
            yield from ((f"{path}.{name}.weight", shape) for name, shape in EXPERT.items())


def some_weights(n_bytes: int) -> list[tuple[str, tuple[int, int]]]:
    """The first of them, of about so many bytes together."""
    chosen = []
    for name, shape in weights():
        chosen.append((name, shape))
        n_bytes -= shape[0] * shape[1]
        if n_bytes <= 0:
            return chosen
    raise AssertionError


def scales(shape: tuple[int, int], random: np.random.Generator) -> Float32Array:
    """Scales of the blocks of a matrix, near each other as in a real one."""
    grid = (-(-shape[0] // BLOCK), -(-shape[1] // BLOCK))
    return (2e-4 * np.exp(0.2 * random.standard_normal(grid))).astype(np.float32)


def codes(shape: tuple[int, int], pool: Uint8Array) -> Iterator[Uint8Array]:
    """Codes of a bell shape, a row of blocks at a time; each block reaches the largest."""
    for first in range(0, shape[0], BLOCK):
        lines = min(BLOCK, shape[0] - first)
        begin = first * 4099 % (pool.size // 2)
        band = pool[begin : begin + lines * shape[1]].reshape(lines, shape[1]).copy()
        band[0, ::BLOCK] = FORMATS["E4M3"].max_code
        yield band


def write_checkpoint(folder: Path, n_bytes: int) -> None:
    """Write a checkpoint of about so many bytes."""
    random = np.random.default_rng(0)
    pool = encode(np.clip(random.standard_normal(1 << 23, np.float32) * 110, -440, 440), FORMATS["E4M3"])
    ones = np.full(2 * HIDDEN, 0x3F, np.uint8)  # its high byte twice: 0x3F3F is 0.746 in BF16
    written = [WrittenTensor("model.norm.weight", "BF16", (HIDDEN,), lambda: [ones])]
    for name, shape in some_weights(n_bytes):
        grid = scales(shape, random)
        written.append(WrittenTensor(name, "F8_E4M3", shape, lambda shape=shape: codes(shape, pool)))  # type: ignore[misc]
        written.append(WrittenTensor(f"{name}_scale_inv", "F32", grid.shape, lambda grid=grid: [grid]))  # type: ignore[misc]
    write_sharded(folder, written, _SHARD_BYTES, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))


def write_sparse(folder: Path, n_bytes: int) -> None:
    """Write a file that says it holds so many bytes; scales are there, codes are a hole."""
    folder.mkdir()
    random = np.random.default_rng(0)
    chosen = some_weights(n_bytes)
    grids = {f"{name}_scale_inv": scales(shape, random) for name, shape in chosen}
    header: dict[str, object] = {}
    at = 0
    for name, grid in grids.items():
        header[name] = {"dtype": "F32", "shape": list(grid.shape), "data_offsets": [at, at := at + grid.nbytes]}
    for name, shape in chosen:
        size = shape[0] * shape[1]
        header[name] = {"dtype": "F8_E4M3", "shape": list(shape), "data_offsets": [at, at := at + size]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(grid.tobytes() for grid in grids.values())
        file.truncate(8 + len(text) + at)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def audit(path: Path, headers_only: bool) -> Cost:
    """Audit a checkpoint in this process, which has done nothing else."""
    began_cpu_s, began_s = time.process_time(), time.perf_counter()
    got = audit_checkpoint(path, headers_only=headers_only)
    cpu_s, wall_s = time.process_time() - began_cpu_s, time.perf_counter() - began_s
    return Cost(got.n_bytes, got.n_tensors, cpu_s, wall_s, peak_mb(), len(got.findings))


def peak_mb() -> float:
    """The most memory that this process had; getrusage would tell that of its parent, where that was more."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def measured(path: Path, headers_only: bool) -> Cost:
    """The same in a fresh process: the peak of memory is that of a process, and never goes down."""
    command = [sys.executable, __file__, "--one", str(path), *(["--headers-only"] if headers_only else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Cost(**json.loads(done.stdout))


def table(costs: dict[str, Cost]) -> list[str]:
    """The results as lines of Markdown."""
    lines = [
        "| audit | tensors | GB | CPU s | s | GB/s a core | peak MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for what, cost in costs.items():
        rate = "" if "headers" in what else f"{cost.n_bytes / cost.cpu_s / 1e9:.2f}"
        lines.append(
            f"| {what} | {cost.n_tensors:,} | {cost.n_bytes / 1e9:.1f} | {cost.cpu_s:.2f} | {cost.wall_s:.2f} | "
            f"{rate} | {cost.peak_mb:.0f} |"
        )
    return [*lines, "", f"{machine()}, numpy {version('numpy')}; {date.today()}."]


def main() -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0, help="bytes of the checkpoint that is written, in GB")
    parser.add_argument("--sparse-gb", type=float, default=50.0, help="bytes that the sparse file says it has")
    parser.add_argument("--sparse-whole", action="store_true", help="read the sparse file too, not its headers alone")
    parser.add_argument("--check", action="store_true", help="exit 1 where a limit is missed")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="replace the block `checkpoint` of this page")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--headers-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(asdict(audit(arguments.one, arguments.headers_only))))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="fp8debug-checkpoint-"))
    try:
        write_checkpoint(folder / "real", int(arguments.gb * 1e9))
        write_sparse(folder / "sparse", int(arguments.sparse_gb * 1e9))
        costs = {
            "all bytes": measured(folder / "real", headers_only=False),
            "headers and scales": measured(folder / "real", headers_only=True),
            "headers and scales of a sparse file": measured(folder / "sparse", headers_only=True),
        }
        if arguments.sparse_whole:
            costs["all bytes of the sparse file, zeros"] = measured(folder / "sparse", headers_only=False)
    finally:
        shutil.rmtree(folder)
    lines = table(costs)
    print("\n".join(lines))
    if arguments.markdown is not None:
        replace_section(arguments.markdown, "checkpoint", lines)
    whole = costs["all bytes"]
    missed = whole.n_bytes / whole.cpu_s < LEAST_GB_S * 1e9 or max(cost.peak_mb for cost in costs.values()) > MOST_MB
    if missed:
        print(f"limit missed: {LEAST_GB_S:.0f} GB/s a core, {MOST_MB} MB", file=sys.stderr)
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
