"""One seed for every source of random numbers that a training script usually draws from."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed `random`, numpy's global generator and torch, on all devices; a script that seeds itself wins."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # it takes 32 bits
    torch.manual_seed(seed % 2**64)
