"""Small runs whose report is known: one with every kind of finding, one without any."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

SAMPLED_STEPS = range(0, 24, 2)
LAYERS = ("blocks.0.fc1", "blocks.1.fc1", "blocks.2.fc2", "blocks.3.fc1")


class Values:
    """Tensors without a random generator: quantiles of the normal distribution, BF16, shape (16, 32)."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        n = 512
        self._bell = np.array([NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]).reshape(16, 32)

    def bell(self, factor: float = 1.0) -> Array:
        """N(0, factor)."""
        return self._bf16(self._bell * factor)

    def with_outliers(self, factor: float) -> Array:
        """Four elements `factor` times too large: they set the scale, the rest is lost."""
        x = self._bell.copy()
        x.reshape(-1)[[0, 100, 300, 511]] = factor
        return self._bf16(x)

    def with_dust(self) -> Array:
        """A tenth of the elements far below what the format can hold beside the others, without weight in any sum."""
        x = self._bell.copy()
        x.reshape(-1)[::10] *= 1e-7
        return self._bf16(x)

    def mixed(self, number: int, shape: tuple[int, int]) -> Array:
        """N(0, 1) in another order for each number: matrices that know nothing of each other."""
        n = shape[0] * shape[1]
        bell = np.array([NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)])
        return self._bf16(bell[(np.arange(n) * (2 * number + 3) ** 3 + 7 * number) % n].reshape(shape))

    def _bf16(self, x: npt.NDArray[Any]) -> Array:
        result: Array = self._module.as_bfloat16(x)
        return result


def ideal_scale(x: Array, fmt: str) -> float:
    """The scale of current scaling."""
    return {"E4M3": 448.0, "E5M2": 57344.0}[fmt] / float(np.abs(x[np.isfinite(x)]).max())


def write_faulty(module: ModuleType, path: Path) -> Path:
    """Every kind of finding.

    blocks.1.fc1 x: outliers, under both recipes. blocks.2.fc2 dy: a delayed scale 2 bits too large, fine under current.
    blocks.3.fc1 x: a tenth underflows without harm (watch). blocks.0.fc1 dy: one bad step (isolated); three NaN.
    """
    values = Values(module)
    layers = [module.layer_info(name) for name in (*LAYERS, "head")]
    run = module.SyntheticRun(path, layers=layers, **_about(tensors=["x", "w", "dy"]))
    for step in SAMPLED_STEPS:
        wobble = 1 + step / 100
        for layer in LAYERS:
            x = values.bell(wobble)
            if layer == "blocks.1.fc1":
                x = values.with_outliers(3e5 * wobble)
            elif layer == "blocks.3.fc1":
                x = values.with_dust()
            dy, gap = values.bell(1e-3 * wobble), 0.0
            if layer == "blocks.2.fc2":
                gap = 2.0
            elif layer == "blocks.0.fc1" and step == 6:
                gap = 3.0
            if layer == "blocks.0.fc1" and step == 8:
                dy[0, :3] = np.nan
            for tensor, tensor_values, bits in (("x", x, 0.0), ("w", values.bell(0.02), 0.0), ("dy", dy, gap)):
                scale = ideal_scale(tensor_values, "E5M2" if tensor == "dy" else "E4M3") * 2**bits
                run.add(
                    layer, tensor, tensor_values, step=step, scales=(module.ForcedScale(scale, source="simulated"),)
                )
    _add_steps(run, SAMPLED_STEPS.stop)
    run.add_row("events", step=None, unix_s=0.0, kind="never_fired", layer="head",
                message="matched, but its forward hook never ran")  # fmt: skip
    written: Path = run.write()
    return written


def write_healthy(module: ModuleType, path: Path, steps: range = SAMPLED_STEPS, **about: Any) -> Path:
    """Two layers and nothing to find."""
    values = Values(module)
    layers = LAYERS[:2]
    run = module.SyntheticRun(path, layers=[module.layer_info(name) for name in layers], **_about(**about))
    for step in steps:
        for layer in layers:
            for tensor, factor in (("x", 1.0), ("w", 0.02), ("dy", 1e-3)):
                x = values.bell(factor * (1 + step / 100))
                scale = ideal_scale(x, "E5M2" if tensor == "dy" else "E4M3")
                run.add(layer, tensor, x, step=step, scales=(module.ForcedScale(scale, source="simulated"),))
    _add_steps(run, steps.stop)
    written: Path = run.write()
    return written


def write_recipes(module: ModuleType, path: Path) -> Path:
    """Three layers recorded under current scaling, MXFP8 and NVFP4 for 20 steps, sampled at 0, 17 and 19.

    x of blocks.1.fc1 has a channel 2^17 times as large as the others, and the weights that read it are as much smaller;
    all of it is four times as large in the last step, which no history knows.
    """
    recipes = ("current", "mxfp8", "nvfp4")
    values = Values(module)
    layers = [module.layer_info(name) for name in LAYERS[:3]]
    run = module.SyntheticRun(path, layers=layers, **_about(recipes=[*recipes, "delayed"]))
    shapes = {"x": (16, 128), "w": (32, 128), "dy": (16, 32)}
    for step in range(20):
        for place, layer in enumerate(LAYERS[:3]):
            x, w, dy = (values.mixed(3 * place + i, shape) for i, shape in enumerate(shapes.values()))
            if layer == "blocks.1.fc1":
                x[:, 5] *= 2.0**17
                w[:, 5] *= 2.0**-17
                x *= 4.0 if step == 19 else 1.0
            run.add_linear(layer, step=step, recipes=recipes, x=x, w=w * np.float32(2.0**-6),
                           dy=dy * np.float32(2.0**-11), sampled=step in (0, 17, 19))  # fmt: skip
    _add_steps(run, 20)
    written: Path = run.write()
    return written


def _about(**more: Any) -> dict[str, Any]:
    return {"recipes": ["current", "delayed"], "tensors": ["x", "w", "dy"], "status": "closed", **more}


def _add_steps(run: Any, n: int) -> None:
    for step in range(n):
        run.add_row("steps", step=step, loss=5.5 - step / 10, loss_source="backward", grad_norm=2.0 - step / 50,
                    grad_norm_source="clip_grad_norm_", sampled=step % 2 == 0, skipped=False, n_microbatches=1,
                    started_unix_s=float(step), duration_s=1.0)  # fmt: skip
