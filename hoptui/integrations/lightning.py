"""Lightning: `Trainer(callbacks=[HoptuiCallback()])`, for `lightning.pytorch` and for `pytorch_lightning`.

An iteration is an optimizer step: the number of a row is Lightning's `global_step`. The boundary is the end
of a batch with a step, on all ranks, which is also where `ModelCheckpoint` saves.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hoptui
from hoptui.integrations.batch_size import sample_count
from hoptui.integrations.error_guard import harmless
from hoptui.integrations.lightning_callbacks import CallbackTimer, hooks
from hoptui.integrations.lightning_class import framework_class
from hoptui.integrations.lightning_internals import planned_steps, stored_metrics, train_loaders
from hoptui.integrations.lightning_knobs import LightningKnobs
from hoptui.integrations.versions import Supported

log = logging.getLogger("hoptui")

SUPPORTED = {
    "lightning.pytorch": Supported("lightning", "2.2", "2.6"),
    "pytorch_lightning": Supported("pytorch-lightning", "2.2", "2.6"),
}
"""The two names of the framework, and the supported versions of each package."""
ATTACH = "HOPTUI_LIGHTNING"
"""The environment variable that makes every `Trainer` a run: `1`, or the name of the run."""
SETTLED = 0.02
"""The planned total is sent again if it differs by this share: it is an estimate with manual optimization."""


class Adapter:
    """The hooks of both callbacks. An instance also inherits from the `Callback` of the framework."""

    _plain: type  # the class without the base of the framework

    def __new__(cls, *args: Any, **kwargs: Any) -> Adapter:
        return object.__new__(framework_class(cls))

    def __init__(self, name: str | None = None, *, checkpoint_dir: str | Path | None = None) -> None:
        self.name = name
        self.checkpoint_dir = checkpoint_dir
        self._resume: Mapping[str, Any] | None = None
        self._forget()

    def _forget(self) -> None:
        """Start without anything of an earlier fit."""
        self._run: hoptui.Run | None = None
        self._automatic = True
        self._step = self._began_at = 0
        self._finished: int | None = None
        self._total: int | None = None
        self._batches = self._samples = 0
        self._replicas = 1
        self._several_loaders = False
        self._phase = ""
        self._timed: Any = None
        self._callbacks: CallbackTimer | None = None
        self._stop_reported = False
        self._seen: dict[str, Any] = {}
        self._rates: dict[str, Any] = {}
        self._rate_names: dict[int, str] = {}
        self._knobs: LightningKnobs | None = None
        self._timers: dict[str, AbstractContextManager[None]] = {}
        self._timer: AbstractContextManager[None] | None = None
        self._writes = False
        self._loop: Any = None
        self._step_names: dict[str, str] = {}
        self._stood: dict[str, Any] | None = None
        self._stood_validation: dict[str, Any] | None = None

    def __reduce__(
        self,
    ) -> tuple[Any, ...]:  # a strategy may send the callback to the processes that it spawns
        return _rebuild, (type(self)._plain, self.name, self.checkpoint_dir, self._resume)

    @property
    def run(self) -> hoptui.Run | None:
        """The run of the `fit` in progress. None before and after it."""
        return self._run

    # the life of a fit --------------------------------------------------------------------------------------

    @harmless
    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Connect, and declare the knobs. All ranks do."""
        if _first(trainer) is not self:
            return
        for package, supported in SUPPORTED.items():
            if type(trainer).__module__.startswith(package):
                supported.warn()
        self._forget()
        self._automatic = bool(module.automatic_optimization)
        self._step = self._began_at = int(trainer.global_step)
        # a model that is spread over several ranks gets the same samples on each of them
        self._replicas = int((trainer.distributed_sampler_kwargs or {}).get("num_replicas") or 1)
        self._writes, self._loop = trainer.global_rank == 0, trainer.fit_loop.epoch_loop
        self._several_loaders = isinstance(train_loaders(trainer), (Mapping, list, tuple))
        total = self._total = planned_steps(trainer)
        name = self.name or type(module).__name__
        self._run = run = hoptui.connect(name, total=total, resume=self._resume)
        self._resume = None
        self._declare(run, trainer)
        self._time_checkpoints(trainer)
        others = hooks(each for each in trainer.callbacks if each is not self)
        self._callbacks = CallbackTimer(others, self._begin_callback, self._end_callback)
        self._callbacks.start(trainer.profiler)
        if not run.boundary(self._step):
            trainer.should_stop = True
        self._enter("data")

    @harmless
    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Close the run."""
        if self._run is None:
            return
        self._log_epoch(trainer)
        if trainer.should_stop and not self._run.stopping:
            self._close(trainer, "finished", "trainer.should_stop was set")
        else:
            self._close(trainer)

    @harmless
    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Report the exception as the end of the run."""
        if self._run is None:
            return
        kind = type(exception).__name__
        if isinstance(exception, KeyboardInterrupt):
            self._close(trainer, "stopped", "interrupted from the keyboard")
        elif kind == "SIGTERMException":
            self._close(trainer, "stopped", "SIGTERM")
        else:
            self._close(trainer, "exception", f"{kind}: {exception}")

    @harmless
    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Close a run that Lightning left in another way."""
        if self._run is not None:
            self._close(trainer)

    # iterations ---------------------------------------------------------------------------------------------

    @harmless
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """End the phase `data`."""
        if self._run is None:
            return
        if batch_idx == 0 and self._knobs is not None:
            self._knobs.begin_epoch()
        self._enter("forward" if self._automatic else "training_step")

    @harmless
    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Begin the phase `backward`."""
        if self._run is None:
            return
        if self._automatic:
            self._enter("backward")
        else:
            self._run.enter("backward")

    @harmless
    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """End the phase `backward` of a manual optimization: the step goes on with code of the user."""
        if self._run is not None and not self._automatic:
            self._run.leave("backward")

    @harmless
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Begin the phase `optimizer`, and read the learning rate that the step uses."""
        if self._run is None:
            return
        self._rates[self._rate_names.get(id(optimizer), "lr")] = optimizer.param_groups[0]["lr"]
        if self._automatic:
            self._enter("optimizer")

    @harmless
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Pass the boundary, if the batch ended with a step."""
        run = self._run
        if run is None:
            return
        self._batches += 1
        self._samples += self._count(batch)
        step = self._loop.global_step
        if step > self._step:
            metrics = self._step_metrics(trainer, outputs) if self._writes else {}
            metrics["samples"] = self._samples
            run.log(metrics)
            self._samples = 0
            self._finished, self._step = self._step, int(step)
            self._leave()
            if not self._automatic:
                self._plan_steps(trainer)
            if self._knobs is not None:
                self._knobs.before_boundary()
                self._knobs.hold_batch(batch)
            if not run.boundary(step):
                self._stop(trainer)
            if self._knobs is not None:
                self._knobs.hold_batch(None)
                self._knobs.end_step()
        self._enter("data")

    @harmless
    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Remember the metrics that stood before those of the epoch."""
        if self._run is not None:
            self._leave()
            self._stood = dict(stored_metrics(trainer))

    @harmless
    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Log what the last epoch gave."""
        if self._run is None:
            return
        self._log_epoch(trainer)
        self._enter("data")

    # validation ---------------------------------------------------------------------------------------------

    @harmless
    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Begin the phase `validation`, within a fit."""
        if self._run is not None and not trainer.sanity_checking:
            self._stood_validation = dict(stored_metrics(trainer))
            self._enter("validation")

    @harmless
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Log the metrics of the validation into the row of the last iteration."""
        if self._run is None or trainer.sanity_checking:
            return
        self._log_new(trainer, self._stood_validation)
        self._enter("data")

    # knobs --------------------------------------------------------------------------------------------------

    def _declare(self, run: hoptui.Run, trainer: Any) -> None:
        run.metric("samples_per_s", unit="samples/s", headline=True)
        folder = self.checkpoint_dir or getattr(trainer.checkpoint_callback, "dirpath", None)
        path = Path(str(folder or trainer.default_root_dir))
        save = trainer.save_checkpoint

        def checkpoint() -> str:
            target = path / f"hoptui-step={trainer.global_step}.ckpt"
            save(target)
            return str(target)

        run.on_checkpoint(checkpoint)
        self._knobs = LightningKnobs(run, trainer, self._automatic, self._plan)
        self._rate_names = self._knobs.rate_names

    # metrics ------------------------------------------------------------------------------------------------

    def _step_metrics(self, trainer: Any, outputs: Any) -> dict[str, Any]:
        """Return what this step logged, under the names of Lightning's loggers, and the learning rates.

        Lightning keeps old values in `callback_metrics`. A value counts once: when it is a new object.
        """
        found: dict[str, Any] = dict(self._rates)
        seen = self._seen
        for key, metric in self._loop._results.items():
            value = metric._forward_cache if metric.meta.on_step else None
            if value is not None and seen.get(key) is not value:
                seen[key] = value
                name = self._step_names.get(key)
                if name is None:
                    name = self._step_names[key] = metric.meta.forked_name(True)
                found[name] = value
        if any("loss" in name for name in found):
            return found
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        if loss is not None:
            pieces = int(trainer.accumulate_grad_batches) if self._automatic else 1
            found["loss"] = loss * pieces if pieces > 1 else loss  # Lightning divides it
        return found

    def _log_epoch(self, trainer: Any) -> None:
        if self._stood is not None:
            self._log_new(trainer, self._stood)
            self._stood = None

    def _log_new(self, trainer: Any, before: Mapping[str, Any] | None) -> None:
        """Log the metrics that Lightning stored since `before`, into the row of the last iteration."""
        if before is None or trainer.global_rank or self._run is None or self._finished is None:
            return
        now = stored_metrics(trainer)
        new = {name: value for name, value in now.items() if before.get(name) is not value}
        for name in [name for name in new if f"{name}_epoch" in new]:
            del new[name]
        if new:
            self._run.log(new, step=self._finished)

    def _count(self, batch: Any) -> int:
        """Return the samples of a batch on all ranks, 0 if its size cannot be found."""
        if self._several_loaders and isinstance(batch, (Mapping, list, tuple)):
            parts = batch.values() if isinstance(batch, Mapping) else batch
            return self._replicas * sum(sample_count(each) or 0 for each in parts)
        return self._replicas * (sample_count(batch) or 0)

    # phases, total, end -------------------------------------------------------------------------------------

    def _enter(self, name: str) -> None:
        """Begin a phase in place of the one in progress."""
        if self._timer is not None:
            self._timer.__exit__(None, None, None)
        timer = self._timers.get(name)
        if timer is None and self._run is not None:
            timer = self._timers[name] = self._run.phase(name)
        if timer is not None:
            timer.__enter__()
        self._timer, self._phase = timer, name

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.__exit__(None, None, None)
        self._timer, self._phase = None, ""

    @harmless
    def _begin_callback(self) -> str | None:
        """Begin the phase `callbacks`. Return the one in progress, None if it goes on.

        A module that optimizes by itself has phases inside its step, so that goes on.
        """
        if self._run is None or self._phase == "training_step":
            return None
        before = self._phase
        self._enter("callbacks")
        return before

    @harmless
    def _end_callback(self, before: str | None) -> None:
        if before is None or self._run is None:
            return
        if before:
            self._enter(before)
        else:
            self._leave()

    def _time_checkpoints(self, trainer: Any) -> None:
        """Time `trainer.save_checkpoint`, also as other callbacks call it, as the phase `checkpoint`."""
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = self._phase
            self._enter("checkpoint")
            try:
                return save(*args, **kwargs)
            finally:
                self._enter(before) if before else self._leave()

        trainer.save_checkpoint = timed
        self._timed = trainer

    def _plan_steps(self, trainer: Any) -> None:
        """Estimate the total of a manual optimization, in which a batch may take several steps."""
        planned = planned_steps(trainer)
        if planned is None or planned == trainer.max_steps:
            return
        rise = (self._step - self._began_at) / self._batches
        if self._began_at == 0 and rise != 1:
            total = round(planned * rise)
            if self._total is None or abs(total - self._total) > SETTLED * self._total:
                self._plan(min(total, trainer.max_steps) if trainer.max_steps > 0 else total)

    def _plan(self, total: int | None) -> None:
        if self._run is not None and total is not None and total != self._total:
            self._total = total
            self._run.plan(total)

    def _stop(self, trainer: Any) -> None:
        trainer.should_stop = True
        loop = trainer.fit_loop
        if self._run is not None and not self._stop_reported and not getattr(loop, "_can_stop_early", True):
            self._stop_reported = True
            self._run.event(
                f"Lightning stops after min_epochs={loop.min_epochs} and min_steps={loop.min_steps}",
                level="warning",
            )

    def _close(self, trainer: Any, reason: Any = None, detail: str = "") -> None:
        self._leave()
        run, self._run = self._run, None
        if self._knobs is not None:
            self._knobs.close()
        self._knobs, self._loop = None, None
        if self._timed is not None:
            with contextlib.suppress(AttributeError):
                del self._timed.save_checkpoint  # the method of the class shows again
        self._timed = None
        if self._callbacks is not None:
            self._callbacks.stop()
        self._callbacks = None
        if run is not None:
            self._resume = run.state_dict()  # another fit is the next restart of the run
            run.close(reason, detail)

    def give_up(self) -> None:
        """End the run after an error of this class."""
        if (run := self._run) is not None:
            run.close()
        self._close(None)


class HoptuiCallback(Adapter):
    """Make each `Trainer.fit` a run that hoptui shows and changes.

    Args:
        name: The name of the run. None: the class name of the LightningModule.
        checkpoint_dir: The folder for checkpoints that a user asks for. None: the folder of the
            `ModelCheckpoint`, else `default_root_dir`.

    Checkpoints keep the identity of the run. A `fit` with `ckpt_path` is then its next restart.

    Example:
        ```python
        from hoptui.integrations.lightning import HoptuiCallback

        trainer = Trainer(max_epochs=3, callbacks=[HoptuiCallback("my-run")])
        ```
    """

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue this run."""
        try:
            return self._run.state_dict() if self._run is not None else {}
        except Exception as error:
            log.debug("no identity in the checkpoint: %s", error)
            return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the run of a checkpoint with the next `fit`."""
        self._resume = dict(state_dict) or None


class AutomaticCallback(Adapter):
    """What `install` and the entry point add. It writes nothing into checkpoints."""


def callbacks_factory() -> list[Any]:
    """Return what the entry point adds to each `Trainer`: nothing, unless `HOPTUI_LIGHTNING` asks for it.

    `HOPTUI_LIGHTNING=1` makes each `fit` a run; any other value but `0` and "" is the name of the run.
    """
    asked = os.environ.get(ATTACH, "").strip()
    if asked.lower() in ("", "0", "off", "no", "false"):
        return []
    return [AutomaticCallback(None if asked.lower() in ("1", "on", "yes", "true") else asked)]


def install(name: str | None = None) -> None:
    """Give each `Trainer` of this process the callback from now on, unless its script adds one.

    Both packages are covered if they are imported by now. A second call covers those imported since.

    Args:
        name: The name of the runs. None: the class name of the LightningModule.

    Example:
        ```python
        import hoptui.integrations.lightning

        hoptui.integrations.lightning.install("my-run")
        ```
    """
    for package in SUPPORTED:
        trainer = getattr(sys.modules.get(package), "Trainer", None)
        if trainer is None or getattr(trainer.__init__, "of_hoptui", False):
            continue
        trainer.__init__ = _installing(trainer.__init__, name)


def _installing(original: Callable[..., None], name: str | None) -> Callable[..., None]:
    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with contextlib.suppress(Exception):
            if not any(isinstance(each, Adapter) for each in self.callbacks):
                saving = (i for i, each in enumerate(self.callbacks) if _is_checkpoint(each))
                self.callbacks.insert(next(saving, len(self.callbacks)), AutomaticCallback(name))

    initialize.of_hoptui = True  # type: ignore[attr-defined]
    return initialize


# what Lightning has -----------------------------------------------------------------------------------------


def _is_checkpoint(callback: Any) -> bool:
    """Return whether Lightning wants this callback after all others."""
    return any(kind.__name__ == "Checkpoint" for kind in type(callback).__mro__)


def _first(trainer: Any) -> Adapter | None:
    """Return the callback that works in this trainer: the script's, else the first automatic one."""
    found = [each for each in trainer.callbacks if isinstance(each, Adapter)]
    return next((each for each in found if isinstance(each, HoptuiCallback)), found[0] if found else None)


def _rebuild(
    cls: type, name: str | None, folder: str | Path | None, resume: Mapping[str, Any] | None
) -> Adapter:
    callback: Adapter = cls(name, checkpoint_dir=folder)
    callback._resume = resume
    return callback
