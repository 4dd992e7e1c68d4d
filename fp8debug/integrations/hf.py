"""Hugging Face Trainer: `Trainer(..., callbacks=[Fp8DebugCallback(every=50)])`."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from fp8debug.hooks.entry import attach
from fp8debug.hooks.session import CloseSummary, Session


class Fp8DebugCallback(TrainerCallback):
    """Records a training from its first step to its last, under the Trainer's own step numbers.

    Takes the options of `fp8debug.attach`. The names of layers are those of the model that the Trainer was given,
    whatever wraps it. A resumed training goes on counting where its checkpoint was saved.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.session: Session | None = None
        """Open while the Trainer trains."""
        self.summary: CloseSummary | None = None
        """What the last training came to."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **others: Any,
    ) -> None:
        """Attach to the model."""
        assert model is not None
        self.session = attach(model, **self._options)
        self.session.begin_step(state.global_step)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """The step before is over, whatever was evaluated after it included."""
        if self.session is not None:
            self.session.begin_step(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Write what is left."""
        if self.session is not None:
            self.summary = self.session.close()
            self.session = None
