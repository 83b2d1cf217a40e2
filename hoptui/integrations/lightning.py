"""Lightning: `Trainer(callbacks=[HoptuiCallback()])`, for `lightning.pytorch` and for `pytorch_lightning`.

An iteration is an optimizer step: the number of a row is Lightning's `global_step`. The boundary is the end
of a batch with a step, on all ranks, which is also where `ModelCheckpoint` saves.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hoptui
from hoptui.integrations.versions import Supported

log = logging.getLogger("hoptui")

SUPPORTED = {
    "lightning.pytorch": Supported("lightning", "2.2", "2.6"),
    "pytorch_lightning": Supported("pytorch-lightning", "2.2", "2.6"),
}
"""The two names of the framework, and the supported versions of each package."""
ATTACH = "HOPTUI_LIGHTNING"
"""The environment variable that makes every `Trainer` a run: `1`, or the name of the run."""
SHARDED = "ModelParallelStrategy"
PROVEN = ("SingleDeviceStrategy", "DDPStrategy", SHARDED)
"""The strategies whose knobs are tested. Others offer the logging interval alone."""
SETTLED = 0.02
"""The planned total is sent again if it differs by this share: it is an estimate with manual optimization."""


def _harmless(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Keep errors of a hook away from the training: hoptui is then off in this run."""

    @functools.wraps(hook)
    def call(self: Adapter, *args: Any, **kwargs: Any) -> Any:
        try:
            return hook(self, *args, **kwargs)
        except Exception as error:
            log.warning(
                "hoptui is off in this run: %s raised %s: %s", hook.__name__, type(error).__name__, error
            )
            self._give_up()
            return None

    return call


class Adapter:
    """The hooks of both callbacks. An instance also inherits from the `Callback` of the framework."""

    _plain: type  # the class without the base of the framework
    _run: hoptui.Run | None
    _finished: int | None
    _total: int | None
    _timed: Any
    _seen: dict[str, Any]
    _rates: dict[str, Any]
    _optimizer_names: dict[int, str]
    _stood: dict[str, Any] | None
    _stood_validation: dict[str, Any] | None
    _accumulate_knob: Any
    _accumulate_next: int | None
    _workers_knob: Any
    _workers_next: int | None
    _automatic: bool
    _step: int
    _began_at: int
    _batches: int
    _samples: int
    _replicas: int
    _several_loaders: bool
    _phase: str
    _stop_reported: bool
    _first_epoch: int
    _workers: int
    _resume: Mapping[str, Any] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Adapter:
        return object.__new__(_framework_class(cls))

    def __init__(self, name: str | None = None, *, checkpoint_dir: str | Path | None = None) -> None:
        self.name = name
        self.checkpoint_dir = checkpoint_dir
        self._resume = None
        self._forget()

    def __reduce__(
        self,
    ) -> tuple[Any, ...]:  # a strategy may send the callback to the processes that it spawns
        return _rebuild, (type(self)._plain, self.name, self.checkpoint_dir, self._resume)

    @property
    def run(self) -> hoptui.Run | None:
        """The run of the `fit` in progress. None before and after it."""
        return self._run

    # the life of a fit --------------------------------------------------------------------------------------

    @_harmless
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
        self._first_epoch = int(trainer.current_epoch)
        # a model that is spread over several ranks gets the same samples on each of them
        self._replicas = int((trainer.distributed_sampler_kwargs or {}).get("num_replicas") or 1)
        self._several_loaders = isinstance(_loaders(trainer), (Mapping, list, tuple))
        total = self._total = _planned(trainer)
        name = self.name or type(module).__name__
        self._run = run = hoptui.connect(name, total=total, resume=self._resume)
        self._resume = None
        self._declare(run, trainer)
        self._time_checkpoints(trainer)
        if not run.boundary(self._step):
            trainer.should_stop = True
        self._enter("data")

    @_harmless
    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Close the run."""
        if self._run is None:
            return
        self._log_epoch(trainer)
        if trainer.should_stop and not self._run.stopping:
            self._close(trainer, "finished", "trainer.should_stop was set")
        else:
            self._close(trainer)

    @_harmless
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

    @_harmless
    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Close a run that Lightning left in another way."""
        if self._run is not None:
            self._close(trainer)

    # iterations ---------------------------------------------------------------------------------------------

    @_harmless
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """End the phase `data`."""
        if self._run is None:
            return
        if self._workers_next is not None and batch_idx == 0 and trainer.current_epoch > self._first_epoch:
            self._workers, self._workers_next = self._workers_next, None
            self._workers_knob.holds()
        self._enter("forward" if self._automatic else "training_step")

    @_harmless
    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Begin the phase `backward`."""
        if self._run is None:
            return
        if self._automatic:
            self._enter("backward")
        else:
            self._run.enter("backward")

    @_harmless
    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """End the phase `backward` of a manual optimization: the step goes on with code of the user."""
        if self._run is not None and not self._automatic:
            self._run.leave("backward")

    @_harmless
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Begin the phase `optimizer`, and read the learning rate that the step uses."""
        if self._run is None:
            return
        self._rates[self._optimizer_names.get(id(optimizer), "lr")] = optimizer.param_groups[0]["lr"]
        if self._automatic:
            self._enter("optimizer")

    @_harmless
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Pass the boundary, if the batch ended with a step."""
        run = self._run
        if run is None:
            return
        self._batches += 1
        self._samples += self._count(batch)
        step = int(trainer.global_step)
        if step > self._step:
            metrics = self._step_metrics(trainer, outputs) if trainer.global_rank == 0 else {}
            run.log(metrics, samples=self._samples)
            self._samples = 0
            self._finished, self._step = self._step, step
            self._phase = ""
            if not self._automatic:
                self._plan_steps(trainer)
            if not run.boundary(step):
                self._stop(trainer)
            if self._accumulate_next is not None and self._aligned(trainer, self._accumulate_next):
                self._accumulate(trainer, self._accumulate_next)
                self._accumulate_knob.holds()
        self._enter("data")

    @_harmless
    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Remember the metrics that stood before those of the epoch."""
        if self._run is not None:
            self._leave()
            self._stood = dict(_stored(trainer))

    @_harmless
    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Log what the last epoch gave."""
        if self._run is None:
            return
        self._log_epoch(trainer)
        self._enter("data")

    # validation ---------------------------------------------------------------------------------------------

    @_harmless
    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Begin the phase `validation`, within a fit."""
        if self._run is not None and not trainer.sanity_checking:
            self._stood_validation = dict(_stored(trainer))
            self._enter("validation")

    @_harmless
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
        run.knob(
            "log_every_n_steps",
            int(trainer.log_every_n_steps),
            min=1,
            max=1_000_000,
            effect="speed",
            apply=lambda steps: setattr(trainer, "log_every_n_steps", steps),
            read=lambda: int(trainer.log_every_n_steps),
            description="steps between two rows in Lightning's loggers",
        )
        strategy = _strategy(type(trainer.strategy))
        proven = strategy in PROVEN
        self._declare_accumulation(run, trainer, proven)
        if not proven:
            return
        many = len(trainer.optimizers) > 1
        for number, optimizer in enumerate(trainer.optimizers):
            configs = trainer.lr_scheduler_configs
            found = [c.scheduler for c in configs if getattr(c.scheduler, "optimizer", None) is optimizer]
            prefix = f"optimizer{number}_" if many else ""
            run.optimizer(optimizer, found or None, prefix=prefix)
            self._optimizer_names[id(optimizer)] = f"{prefix}lr"
        if strategy != SHARDED:
            self._declare_clipping(run, trainer)
        self._declare_workers(run, trainer)

    def _declare_accumulation(self, run: hoptui.Run, trainer: Any, proven: bool) -> None:
        if not self._automatic:
            return  # Lightning has no accumulation then
        scheduled = any(type(each).__name__ == "GradientAccumulationScheduler" for each in trainer.callbacks)

        def apply(batches: int) -> object:
            if trainer.strategy.handles_gradient_accumulation or not proven:
                raise ValueError(
                    f"{type(trainer.strategy).__name__} is not known to accept it while it trains: "
                    "set it in the script and start again"
                )
            if scheduled:
                raise ValueError("the GradientAccumulationScheduler of the script sets it in each epoch")
            if not self._aligned(trainer, batches):
                self._accumulate_next = batches
                return hoptui.LATER
            self._accumulate(trainer, batches)
            return None

        self._accumulate_knob = run.knob(
            "accumulate_grad_batches",
            int(trainer.accumulate_grad_batches),
            min=1,
            max=4096,
            apply=apply,
            read=lambda: int(trainer.accumulate_grad_batches),
            unit="batches",
            description="batches of one optimizer step; takes effect at a multiple of it in the epoch",
        )

    def _aligned(self, trainer: Any, batches: int) -> bool:
        """Return whether Lightning would begin a new step here with this number of batches too."""
        ready = _ready(trainer)
        return ready % batches == 0 or trainer.is_last_batch or ready == trainer.num_training_batches

    def _accumulate(self, trainer: Any, batches: int) -> None:
        self._accumulate_next = None
        trainer.accumulate_grad_batches = batches
        self._plan(_planned_from_here(trainer))

    def _declare_clipping(self, run: hoptui.Run, trainer: Any) -> None:
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

    def _declare_workers(self, run: hoptui.Run, trainer: Any) -> None:
        """Offer the number of data workers where a new one changes no sample and no order of samples."""
        loader = _resizable(trainer)
        if loader is None:
            return
        self._workers = int(loader.num_workers)

        def apply(workers: int) -> object:
            loader.num_workers = workers
            self._workers_next = workers if workers != self._workers else None
            return None if self._workers_next is None else hoptui.LATER

        self._workers_knob = run.knob(
            "num_workers",
            self._workers,
            min=1,
            max=max(self._workers, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1),
            effect="speed",
            cost="rebuild",
            apply=apply,
            read=lambda: self._workers,
            description="data workers of each rank; takes effect at the next epoch",
        )

    # metrics ------------------------------------------------------------------------------------------------

    def _step_metrics(self, trainer: Any, outputs: Any) -> dict[str, Any]:
        """Return what this step logged, under the names of Lightning's loggers, and the learning rates.

        Lightning keeps old values in `callback_metrics`. A value counts once: when it is a new object.
        """
        found: dict[str, Any] = dict(self._rates)
        for key, metric in getattr(trainer, "_results", {}).items():
            value = metric._forward_cache if metric.meta.on_step else None
            if value is not None and self._seen.get(key) is not value:
                self._seen[key] = value
                found[metric.meta.forked_name(True)] = value
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        if loss is not None and not any("loss" in name for name in found):
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
        now = _stored(trainer)
        new = {name: value for name, value in now.items() if before.get(name) is not value}
        for name in [name for name in new if f"{name}_epoch" in new]:
            del new[name]
        if new:
            self._run.log(new, step=self._finished)

    def _count(self, batch: Any) -> int:
        """Return the samples of a batch on all ranks, 0 if its size cannot be found."""
        if self._several_loaders and isinstance(batch, (Mapping, list, tuple)):
            parts = batch.values() if isinstance(batch, Mapping) else batch
            return self._replicas * sum(_samples(each) or 0 for each in parts)
        return self._replicas * (_samples(batch) or 0)

    # phases, total, end -------------------------------------------------------------------------------------

    def _enter(self, name: str) -> None:
        """Begin a phase in place of the one in progress."""
        self._leave()
        if self._run is not None:
            self._run.enter(name)
            self._phase = name

    def _leave(self) -> None:
        if self._run is not None and self._phase:
            self._run.leave(self._phase)
        self._phase = ""

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
        planned = _planned(trainer)
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
        run, self._run = self._run, None
        if self._timed is not None:
            with contextlib.suppress(AttributeError):
                del self._timed.save_checkpoint  # the method of the class shows again
        self._timed = None
        if run is not None:
            self._resume = run.state_dict()  # another fit is the next restart of the run
            run.close(reason, detail)

    def _give_up(self) -> None:
        try:
            self._close(None)
        except Exception as error:
            log.debug("closing after an error raised %s", error)

    def _forget(self) -> None:
        """Start without anything of an earlier fit."""
        self._run = None
        self._automatic = True
        self._step = self._began_at = 0
        self._finished = None
        self._total = None
        self._batches = self._samples = 0
        self._replicas = 1
        self._several_loaders = False
        self._phase = ""
        self._timed = None
        self._stop_reported = False
        self._seen = {}
        self._rates = {}
        self._optimizer_names = {}
        self._stood = None
        self._stood_validation = None
        self._accumulate_knob = None
        self._accumulate_next = None
        self._first_epoch = 0
        self._workers = 0
        self._workers_knob = None
        self._workers_next = None


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


def _strategy(kind: type) -> str:
    """Return the name of a strategy, or of the one that a script made its own of.

    DeepSpeed's inherits from that of DDP, so the nearest class of Lightning counts.
    """
    packages = {package.partition(".")[0] for package in SUPPORTED}
    own = (each.__name__ for each in kind.__mro__ if each.__module__.partition(".")[0] in packages)
    return next(own, "")


def _ready(trainer: Any) -> int:
    """Return the number of batches that this epoch has begun."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)


def _stored(trainer: Any) -> dict[str, Any]:
    """Return the metrics that Lightning has computed. Its property computes more, with collectives."""
    stored: dict[str, Any] = getattr(trainer._logger_connector, "_callback_metrics", {})
    return stored


def _loaders(trainer: Any) -> Any:
    """Return the loader that the script gave, or its list or dict of loaders."""
    loaders = trainer.train_dataloader
    return getattr(loaders, "iterables", loaders)  # of a CombinedLoader


def _planned(trainer: Any) -> int | None:
    """Return the planned number of optimizer steps, None if there is none or Lightning cannot know it."""
    try:
        total = trainer.estimated_stepping_batches
    except Exception:  # accumulation that differs from epoch to epoch
        total = trainer.max_steps
    return int(total) if 0 < total < math.inf else None


def _planned_from_here(trainer: Any) -> int | None:
    """Return the planned number of steps after a change of the accumulation in the middle."""
    batches, each, epochs = trainer.num_training_batches, trainer.accumulate_grad_batches, trainer.max_epochs
    most = int(trainer.max_steps)
    if batches == math.inf or epochs is None or epochs < 0:
        return most if most > 0 else None
    in_epoch = math.ceil(batches / each)
    left = 0 if trainer.is_last_batch else in_epoch - _ready(trainer) // each
    total = int(trainer.global_step + left + max(0, epochs - trainer.current_epoch - 1) * in_epoch)
    return min(total, most) if most > 0 else total


def _resizable(trainer: Any) -> Any:
    """Return the DataLoader whose number of workers may change between two epochs, None if there is none.

    Its workers start anew with each epoch, and the main process decides which samples a batch has. A loader
    without workers is left alone: a dataset may not survive the way into a process.
    """
    from torch.utils.data import DataLoader, IterableDataset

    loader = trainer.train_dataloader
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.num_workers < 1 or loader.persistent_workers or trainer.reload_dataloaders_every_n_epochs:
        return None
    return loader


def _samples(batch: Any) -> int | None:
    """Return the leading dimension of the first thing in a batch that has one."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(batch, Mapping):
        return next(_sizes(batch.values()), None)
    if isinstance(batch, (list, tuple)):
        found = next(_sizes(batch), None)
        return len(batch) if found is None and batch and isinstance(batch[0], str) else found
    for name in ("num_graphs", "batch_size"):
        if isinstance(size := getattr(batch, name, None), int):
            return size
    if hasattr(batch, "__dict__"):
        return next(_sizes(vars(batch).values()), None)
    return None


def _sizes(parts: Any) -> Iterator[int]:
    return (size for size in map(_samples, parts) if size is not None)


# the class of the framework ---------------------------------------------------------------------------------


@functools.cache
def _class_with(cls: type, packages: tuple[str, ...]) -> type:
    bases = tuple(importlib.import_module(package).Callback for package in packages)
    return type(
        cls.__name__, (cls, *bases), {"__module__": cls.__module__, "__doc__": cls.__doc__, "_plain": cls}
    )


def _framework_class(cls: type) -> type:
    """Return the class with the `Callback` of each package that the process has imported.

    Both packages have their own, and a trainer wants its own. A script may import this module before them.
    """
    loaded = tuple(package for package in SUPPORTED if package in sys.modules)
    if not loaded:
        found = [p for p in SUPPORTED if importlib.util.find_spec(p.partition(".")[0]) is not None]
        if not found:
            raise ImportError("neither lightning nor pytorch-lightning is installed")
        loaded = (found[0],)
    return _class_with(cls, loaded)


def _rebuild(
    cls: type, name: str | None, folder: str | Path | None, resume: Mapping[str, Any] | None
) -> Adapter:
    callback: Adapter = cls(name, checkpoint_dir=folder)
    callback._resume = resume
    return callback
