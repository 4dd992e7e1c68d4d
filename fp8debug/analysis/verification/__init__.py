"""Does a fallback plan help: BF16, the recipe and the recipe with the plan, trained alike and held side by side."""

from __future__ import annotations

from fp8debug.analysis.verification.judge import Judgement, Noise, judge
from fp8debug.analysis.verification.record import TrainedRun, Verification, VerifiedRun
from fp8debug.analysis.verification.tail import Tail, tail_gap
from fp8debug.analysis.verification.verify import verify_runs

__all__ = [
    "Judgement",
    "Noise",
    "Tail",
    "TrainedRun",
    "Verification",
    "VerifiedRun",
    "judge",
    "tail_gap",
    "verify_runs",
]
