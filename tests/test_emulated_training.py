"""The benchmark's claims about emulated training, with a smaller GPT: two layers of width 64, 200 steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest

SIZE = {"batch": 8, "seq": 32, "layers": 2, "d": 64, "heads": 2, "last": 50}
FinalLoss = Callable[[str, int], float]


@pytest.fixture(scope="module")
def final_loss(emulated_training: ModuleType, train_gpt: ModuleType, once: Any) -> FinalLoss:
    """Final loss of a variant and seed; trained once."""

    def train(name: str, seed: int) -> float:
        def make(folder: Path) -> None:
            variant = emulated_training.VARIANTS[name]
            options = {"steps": 200, "seed": seed, **SIZE}
            loss = emulated_training.train(train_gpt, variant.recipe, variant.only, **options)
            (folder / "loss").write_text(float(loss).hex())

        return float.fromhex((once(f"emulated {name} {seed}", make) / "loss").read_text())

    return train


def test_current_scaling_ends_where_bf16_does(final_loss: FinalLoss) -> None:
    """Within 1 %, while BF16 itself differs by 2 % from seed to seed."""
    ratios = [final_loss("current", seed) / final_loss("BF16", seed) for seed in range(3)]
    assert mean(ratios) == pytest.approx(1, abs=0.01)
    assert all(0.98 < ratio < 1.02 for ratio in ratios)
    assert len(set(ratios)) == 3 and 1.0 not in ratios


def test_e4m3_gradients_bear_a_margin_of_8_and_not_of_14(final_loss: FinalLoss) -> None:
    base = final_loss("BF16", 0)
    assert final_loss("E4M3 gradients, margin 8", 0) < 1.03 * base
    assert final_loss("E4M3 gradients, margin 14", 0) > 1.2 * base


def test_the_benchmark_tells_what_is_not_as_expected(emulated_training: ModuleType) -> None:
    results = {name: [{"loss": 2.0, "cpu_s": 1.0}, {"loss": 2.1, "cpu_s": 3.0}] for name in emulated_training.VARIANTS}
    results["current"] = [{"loss": 2.1, "cpu_s": 1.0}, {"loss": 2.1, "cpu_s": 1.0}]
    rows = {row.name: row for row in emulated_training.rows(results)}
    assert [name for name, row in rows.items() if not row.ok] == ["current", "E4M3 gradients, margin 14"]
    assert rows["current"].cells == ["current", "2.100", "1.025 (1.000 to 1.050)", "from 0.99 to 1.01", "1"]
