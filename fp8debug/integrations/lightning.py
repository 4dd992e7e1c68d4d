"""Lightning 2.x: `Trainer(callbacks=[Fp8DebugCallback(every=50)])`, of `lightning` or `pytorch_lightning`."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:  # the package's older name
    from pytorch_lightning import Callback, LightningModule, Trainer

from fp8debug.hooks.entry import attach
from fp8debug.hooks.session import CloseSummary, Session


class Fp8DebugCallback(Callback):
    """Records a training from its first batch to its last, under the Trainer's own step numbers.

    Takes the options of `fp8debug.attach`. Layers are called as in the LightningModule: where the model is its
    attribute `net`, `strip_prefix="net."` takes that off.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.session: Session | None = None
        """Open while the Trainer trains."""
        self.summary: CloseSummary | None = None
        """What the last training came to."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the model; what was validated before the training is not seen."""
        self.session = attach(pl_module, **self._options)
        self.session.begin_step(trainer.global_step)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The batch begins another step where the optimizer has stepped since the last one."""
        if self.session is not None:
            self.session.begin_step(trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what is left."""
        self._close("closed", None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write what is left; the run is marked as what it is."""
        status = "interrupted" if isinstance(exception, KeyboardInterrupt) else "failed"
        self._close(status, f"{type(exception).__name__}: {exception}")

    def _close(self, status: str, reason: str | None) -> None:
        if self.session is not None:
            self.summary = self.session.close(status, reason)
            self.session = None
