"""The knobs of Lightning's `Trainer` that are safe to change while it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import hoptui
from hoptui.integrations.data_loaders import NAMES, LoaderKnobs
from hoptui.integrations.gradient_buckets import decline_buckets
from hoptui.integrations.lightning_internals import (
    batches_begun,
    compiled_parts,
    planned_from_here,
    strategy_name,
)

if TYPE_CHECKING:
    from hoptui.integrations.activation_recomputation import ActivationCheckpointing
    from hoptui.integrations.compilation import Compilation

SHARDED = ("FSDPStrategy", "ModelParallelStrategy")
"""Clipping is not tested with these."""
PROVEN = ("SingleDeviceStrategy", "DDPStrategy", *SHARDED)
"""The strategies whose knobs are tested. Others offer the logging interval alone."""


class LightningKnobs:
    """The knobs of one `fit`. Some take effect at a later batch or epoch.

    Args:
        run: The run.
        trainer: The `Trainer` that fits.
        automatic: Whether Lightning optimizes, not the module.
        plan: Called with the planned number of steps when it has changed.
    """

    def __init__(
        self, run: hoptui.Run, trainer: Any, automatic: bool, plan: Callable[[int | None], None]
    ) -> None:
        self._run, self._trainer, self._automatic, self._plan = run, trainer, automatic, plan
        self.rate_names: dict[int, str] = {}
        """The knob of the learning rate, by the id of the optimizer."""
        self._first_epoch = int(trainer.current_epoch)
        self._accumulate_knob: Any = None
        self._accumulate_next: int | None = None
        self._loader: LoaderKnobs | None = None
        self._compilation: Compilation | None = None
        self._recomputing: ActivationCheckpointing | None = None
        run.knob(
            "log_every_n_steps",
            int(trainer.log_every_n_steps),
            min=1,
            max=1_000_000,
            effect="speed",
            apply=lambda steps: setattr(trainer, "log_every_n_steps", steps),
            read=lambda: int(trainer.log_every_n_steps),
            description="steps between two rows of the loggers; only costs time, so no tuner turns it",
        )
        strategy = strategy_name(type(trainer.strategy))
        proven = strategy in PROVEN
        decline_buckets(run, trainer.strategy.model, "DDPStrategy(bucket_cap_mb=…)")
        self._declare_compilation(strategy, proven)
        self._declare_recomputation(strategy, proven)
        self._declare_accumulation(proven)
        if not proven:
            return
        many = len(trainer.optimizers) > 1
        for number, optimizer in enumerate(trainer.optimizers):
            configs = trainer.lr_scheduler_configs
            found = [c.scheduler for c in configs if getattr(c.scheduler, "optimizer", None) is optimizer]
            prefix = f"optimizer{number}_" if many else ""
            run.optimizer(optimizer, found or None, prefix=prefix)
            self.rate_names[id(optimizer)] = f"{prefix}lr"
        if strategy not in SHARDED:
            self._declare_clipping()
        self._declare_loader()

    def begin_epoch(self) -> None:
        """The first batch of an epoch begins: the workers that read it were made before."""
        if self._loader is not None and self._trainer.current_epoch > self._first_epoch:
            self._loader.begin_epoch()

    def hold_batch(self, batch: object) -> None:
        """Remember the batch of the boundary that is passed now, None after it."""
        if self._loader is not None:
            self._loader.batch = batch

    def before_boundary(self) -> None:
        """A step is over, and its boundary is to come."""
        if self._compilation is not None:
            self._compilation.end_step()

    def close(self) -> None:
        """Leave the module as it was before the fit."""
        if self._compilation is not None:
            self._compilation.restore()
        if self._recomputing is not None:
            self._recomputing.restore()

    def end_step(self) -> None:
        """A step is over, and its boundary: a number of batches may hold from here."""
        if self._accumulate_next is not None and self._aligned(self._accumulate_next):
            self._accumulate(self._accumulate_next)
            self._accumulate_knob.holds()

    def _declare_compilation(self, strategy: str, proven: bool) -> None:
        from hoptui.integrations.compilation import Compilation, wrapper_obstacle  # with torch

        trainer = self._trainer
        self._compilation = Compilation(*compiled_parts(trainer.lightning_module))
        reason = wrapper_obstacle(trainer.strategy.model)
        if not proven or strategy in SHARDED:
            reason = f"it is not tested with {strategy or type(trainer.strategy).__name__}"
        elif getattr(trainer.lightning_module, "_compiler_ctx", None) is not None:
            reason = "the script compiles already"
        self._compilation.offer(self._run, reason)

    def _declare_recomputation(self, strategy: str, proven: bool) -> None:
        from hoptui.integrations.activation_recomputation import (
            ActivationCheckpointing,
            model_obstacle,
            wrapper_obstacle,
        )

        trainer = self._trainer
        module, model = trainer.lightning_module, trainer.strategy.model
        reason = wrapper_obstacle(model) or model_obstacle(module)
        if not proven or strategy in SHARDED:
            reason = f"it is not tested with {strategy or type(trainer.strategy).__name__}"
        self._recomputing = ActivationCheckpointing(module, on_gpu=module.device.type == "cuda")
        self._recomputing.offer(self._run, reason)

    def _declare_accumulation(self, proven: bool) -> None:
        run, trainer = self._run, self._trainer
        if not self._automatic:
            return  # Lightning has no accumulation then
        name = "accumulate_grad_batches"
        if trainer.strategy.handles_gradient_accumulation or not proven:
            strategy = type(trainer.strategy).__name__
            why = "is not known to accept it while it trains: set it in the script and start again"
            run.decline(name, f"{strategy} {why}")
            return
        if any(type(each).__name__ == "GradientAccumulationScheduler" for each in trainer.callbacks):
            run.decline(name, "the GradientAccumulationScheduler of the script sets it in each epoch")
            return

        def apply(batches: int) -> object:
            if not self._aligned(batches):
                self._accumulate_next = batches
                return hoptui.LATER
            self._accumulate(batches)
            return None

        self._accumulate_knob = run.knob(
            name,
            int(trainer.accumulate_grad_batches),
            min=1,
            max=4096,
            apply=apply,
            read=lambda: int(trainer.accumulate_grad_batches),
            unit="batches",
            description="batches of one optimizer step; takes effect at a multiple of it in the epoch",
        )

    def _aligned(self, batches: int) -> bool:
        """Return whether Lightning would begin a new step here with this number of batches too."""
        trainer = self._trainer
        ready = batches_begun(trainer)
        return ready % batches == 0 or trainer.is_last_batch or ready == trainer.num_training_batches

    def _accumulate(self, batches: int) -> None:
        self._accumulate_next = None
        self._trainer.accumulate_grad_batches = batches
        self._plan(planned_from_here(self._trainer))

    def _declare_clipping(self) -> None:
        run, trainer = self._run, self._trainer
        if not self._automatic:
            return  # Lightning does not clip then
        by_value = str(getattr(trainer.gradient_clip_algorithm, "value", "")) == "value"
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and any(
            getattr(o, "_step_supports_amp_scaling", False) for o in trainer.optimizers
        ):
            return  # Lightning raises at the next step: a fused optimizer unscales the gradients itself

        run.knob(
            "gradient_clip_val",
            float(trainer.gradient_clip_val or 0.0),
            min=0.0,
            max=1e9,
            apply=lambda value: setattr(trainer, "gradient_clip_val", value or None),
            read=lambda: float(trainer.gradient_clip_val or 0.0),
            description=f"the limit of gradients by {'value' if by_value else 'norm'}; 0: none",
        )

    def _declare_loader(self) -> None:
        """Offer the knobs of the DataLoader where they change no sample and no order of samples."""
        trainer = self._trainer
        if trainer.reload_dataloaders_every_n_epochs:
            for name in NAMES:
                self._run.decline(name, "the script makes a new DataLoader every few epochs")
            return
        self._loader = LoaderKnobs(
            self._run,
            trainer.train_dataloader,
            local_ranks=int(trainer.num_devices),
            next_epoch=self._another_epoch,
        )

    def _another_epoch(self) -> bool:
        epochs = self._trainer.max_epochs
        return epochs is None or epochs < 0 or self._trainer.current_epoch + 1 < epochs
