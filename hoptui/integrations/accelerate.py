"""hoptui in loops with `accelerate.Accelerator`: iterations, counts, live knobs, checkpoint, stop and pause.

An iteration of the run is one step of the first prepared optimizer. The boundary is before the next batch of
the same data loader, when the schedule has been stepped too. A loop without a prepared data loader has it
before the next backward pass.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, data_loader, tracking
from accelerate.optimizer import AcceleratedOptimizer
from torch.nn.parallel import DistributedDataParallel

import hoptui
from hoptui.integrations import activation_recomputation, compilation
from hoptui.integrations.activation_recomputation import ActivationCheckpointing
from hoptui.integrations.batch_size import sample_count
from hoptui.integrations.compilation import Compilation
from hoptui.integrations.data_loaders import NAMES, LoaderKnobs
from hoptui.integrations.error_guard import harmless
from hoptui.integrations.gradient_buckets import decline_buckets
from hoptui.integrations.versions import Supported

log = logging.getLogger("hoptui")

SUPPORTED = Supported("accelerate", "1.0", "1.15")


class HoptuiTracker(tracking.GeneralTracker):  # type: ignore[misc]
    """A tracker that makes the loop of an `Accelerator` a run of hoptui, on all ranks.

    The run begins with `accelerator.init_trackers`. Counts are of all ranks. `samples` are the rows of a
    batch that had a backward pass. `tokens` are the elements of `input_ids`, with padding.

    A stop ends the iteration over the data loader that the loop trains on, in this epoch and in the following
    ones. To leave an outer loop as well, look at `tracker.tracker.stopping`.

    Args:
        run_name: The name of the run. None: the project of `init_trackers`.
        total: The number of planned optimizer steps, None if it is not known.

    Example:
        ```python
        from accelerate import Accelerator
        from hoptui.integrations.accelerate import HoptuiTracker

        accelerator = Accelerator(log_with=HoptuiTracker(total=1000))
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        accelerator.init_trackers("my-run")
        ```
    """

    name = "hoptui"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str | None = None, *, total: int | None = None) -> None:
        super().__init__()
        SUPPORTED.warn()
        self._name, self._total = run_name, total
        self._run: hoptui.Run | None = None
        self._accelerator: Any = None
        self._steps = 0
        self._engine_steps: int | None = None  # those that DeepSpeed's engine has made
        self._stepped = False  # an optimizer step is over, and its boundary is to come
        self._begun = False  # the iteration in progress has had a batch
        self._declared = False
        self._batch: tuple[int, Any] | None = None  # the last batch, and the loader that it is from
        self._loader = 0  # the loader that the loop trains on
        self._counts = {"samples": 0, "tokens": 0}
        self._accumulates = False  # whether the loop counts micro-batches with accelerator.accumulate
        self._wanted: int | None = None  # steps of accumulation that take effect later
        self._accumulation: Any = None
        self._compilation: Compilation | None = None
        self._recomputing: ActivationCheckpointing | None = None
        self._readers: LoaderKnobs | None = None
        self._trained: Any = None  # the batch of the step in progress, until its boundary

    @property
    def tracker(self) -> hoptui.Run | None:
        """The run."""
        return self._run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing: the run records the configuration when it begins."""

    @harmless
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log metrics of the iteration that they are from.

        Args:
            values: Metrics by name.
            step: Not used: scripts count micro-batches, steps or epochs. The row is known without it.
            kwargs: Not used.
        """
        if self._run is not None:
            late = self._declared and not self._begun and self._steps > 0
            self._run.log(values, step=self._steps - 1 if late else None)

    @harmless
    def finish(self) -> None:
        """End the run."""
        self.discard()
        if self._compilation is not None:
            self._compilation.restore()
        if self._recomputing is not None:
            self._recomputing.restore()
        run, self._run = self._run, None
        if run is not None:
            run.close()
        if _active == [self]:
            _active.clear()

    def discard(self) -> None:
        """Drop the iteration in progress if it has had no batch: what follows the last step is not one."""
        if self._run is not None and not self._begun:
            self._run._core.recorder.discard()

    # of the wrapped methods of accelerate -------------------------------------------------------------------

    @harmless
    def begin(self, accelerator: Any, project: str, config: Mapping[str, Any] | None) -> None:
        """The trackers of an accelerator begin."""
        self._accelerator = accelerator
        details: dict[str, Any] = {}
        if config and "config" in inspect.signature(hoptui.connect).parameters:
            details["config"] = dict(config)
        run = self._run = hoptui.connect(self._name or project, total=self._total, **details)
        run.metric("samples_per_s", unit="samples/s", headline=True)
        run.metric("tokens_per_s", unit="tokens/s")
        if accelerator.device.type == "cuda":
            run.gpus([f"GPU-{torch.cuda.get_device_properties(accelerator.device).uuid}"])
        run.on_checkpoint(self._save)
        _active[:] = [self]
        self._declare()
        atexit.register(_discard)  # called before hoptui closes the run, which was registered earlier
        run.boundary(0)

    @harmless
    def fetched(self, loader: object, batch: Any) -> None:
        """A prepared data loader has given a batch."""
        self._batch = id(loader), batch
        self._begun = self._begun or id(loader) == self._loader

    @harmless
    def begins(self, loader: object) -> None:
        """A prepared data loader has given the first batch of an epoch: its workers are made."""
        if self._readers is not None and id(loader) == self._loader:
            self._readers.begin_epoch()

    @harmless
    def ends(self, loader: object) -> bool | None:
        """A prepared data loader is asked for a batch, or is at its end. Return True to end it."""
        if id(loader) != self._loader:
            return False
        self._pass()
        return self._run is not None and self._run.stopping

    @harmless
    def before_backward(self) -> None:
        """A backward pass begins: what was fetched last is trained on."""
        self._pass()  # in a loop without a prepared data loader
        self._begun = True
        if self._engine_steps is None:
            self._engine_steps = _engine_steps(self._accelerator)
        if self._batch is None:
            return
        (self._loader, batch), self._batch = self._batch, None
        self._trained = batch
        processes = self._accelerator.num_processes
        self._counts["samples"] += (sample_count(batch) or 0) * processes
        tokens = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if isinstance(tokens, torch.Tensor):
            self._counts["tokens"] += tokens.numel() * processes

    @harmless
    def stepped(self, optimizer: Any) -> None:
        """A prepared optimizer has made a step, or skipped one to accumulate gradients."""
        accelerator = self._accelerator
        if accelerator is None or not accelerator.sync_gradients or not accelerator._optimizers:
            return
        if optimizer is not accelerator._optimizers[0]:
            return
        if self._engine_steps is not None:
            before, self._engine_steps = self._engine_steps, _engine_steps(accelerator)
            if self._engine_steps == before:
                return  # the engine accumulates by itself
        self._stepped = True
        self._accumulates = self._accumulates or accelerator.step > 0

    def give_up(self) -> None:
        """End the run after an error of this class."""
        self.finish()

    # inside -------------------------------------------------------------------------------------------------

    def _pass(self) -> None:
        """Pass the boundary after an optimizer step."""
        run = self._run
        if not self._stepped or run is None:
            return
        self._stepped = self._begun = False
        self._steps += 1
        run.log({name: count for name, count in self._counts.items() if count})
        self._counts = dict.fromkeys(self._counts, 0)
        self._declare()
        if self._compilation is not None:
            self._compilation.end_step()
        self._declare_readers(run)
        if self._readers is not None:
            self._readers.batch = self._trained
        run.boundary(self._steps)
        self._trained = None
        if self._readers is not None:
            self._readers.batch = None
        if self._wanted is not None and self._aligned(self._wanted):  # in effect for the step that begins
            self._accelerator.gradient_accumulation_steps, self._wanted = self._wanted, None
            self._accumulation.holds()

    def _declare(self) -> None:
        """Declare the knobs once there is an optimizer."""
        run, accelerator = self._run, self._accelerator
        if self._declared or run is None or not accelerator._optimizers:
            return
        self._declared = True
        for index, optimizer in enumerate(accelerator._optimizers):
            schedules = [each for each in accelerator._schedulers if optimizer in _optimizers(each)]
            prefix = f"optimizer{index}_" if len(accelerator._optimizers) > 1 else ""
            run.optimizer(optimizer.optimizer, schedules or None, prefix=prefix)
        models = torch.nn.ModuleList(map(_unwrapped, accelerator._models))
        self._recomputing = ActivationCheckpointing(models, on_gpu=accelerator.device.type == "cuda")
        self._recomputing.offer(run, _recomputation_obstacle(accelerator, models))
        self._compilation = Compilation(list(models))
        self._compilation.offer(run, _compilation_obstacle(accelerator))
        model = next(iter(accelerator._models), None)
        decline_buckets(run, model, "DistributedDataParallelKwargs(bucket_cap_mb=…)")
        if _with_deepspeed(accelerator):
            run.decline(
                "gradient_accumulation_steps", "DeepSpeed's engine has the value of its configuration"
            )
            return
        self._accumulation = run.knob(
            "gradient_accumulation_steps",
            accelerator.gradient_accumulation_steps,
            min=1,
            max=1024,
            description="micro-batches of a step; changes once it divides the number of those so far",
            apply=self._set_accumulation,
            read=lambda: self._accelerator.gradient_accumulation_steps,
        )

    def _declare_readers(self, run: hoptui.Run) -> None:
        """Declare the knobs of the data loader that the loop trains on, once it is known."""
        if self._readers is not None:
            return
        loaders = self._accelerator._dataloaders
        loader = next((each for each in loaders if id(each) == self._loader), None)
        if loader is None:  # none is prepared, or a part of one is left out to resume an epoch
            if self._steps == 1:
                for name in NAMES:
                    run.decline(name, "the loop trains on no data loader that Accelerator.prepare made")
            return
        for name in NAMES:
            run.decline(name, "")
        self._readers = LoaderKnobs(
            run,
            _readers_of(loader),
            local_ranks=int(os.environ.get("LOCAL_WORLD_SIZE") or self._accelerator.num_processes),
            next_epoch=lambda: True,  # accelerate does not know the number of epochs
            synchronized=getattr(loader, "synchronized_generator", None),
        )

    def _set_accumulation(self, steps: int) -> object:
        """Accelerate counts micro-batches modulo this number, so both numbers have to divide the count."""
        self._wanted = None
        if not self._steps:
            raise ValueError("no step has been made yet: set it again after the first iteration")
        if not self._accumulates:
            raise ValueError("the loop does not use accelerator.accumulate")
        if self._aligned(steps):
            self._accelerator.gradient_accumulation_steps = steps
            return None
        self._wanted = steps
        return hoptui.LATER

    def _aligned(self, steps: int) -> bool:
        return bool(self._accelerator.step % steps == 0)

    def _save(self) -> str:
        accelerator = self._accelerator
        if accelerator.project_configuration.automatic_checkpoint_naming:
            return str(accelerator.save_state())
        path = Path(accelerator.project_dir or ".") / f"hoptui-step-{self._steps}"
        return str(accelerator.save_state(str(path)) or path)


def install(name: str | None = None) -> None:
    """From now on, the loop of every `Accelerator` of this process is a run, unless it has a `HoptuiTracker`.

    An accelerator that a Trainer of transformers made is left alone.

    Args:
        name: The name of the runs. None: the name of the script.

    Example:
        ```python
        import hoptui.integrations.accelerate

        hoptui.integrations.accelerate.install()
        ```
    """
    _installed[:] = [name]


_installed: list[str | None] = []
"""The name for accelerators without a tracker, empty if there is none for them."""
_active: list[HoptuiTracker] = []
"""The tracker whose run goes on, if there is one."""


def _discard() -> None:
    for tracker in _active:
        tracker.discard()


def _wrap_accelerate() -> None:
    """Follow the accelerator, its optimizers and its data loaders."""
    if hasattr(Accelerator.init_trackers, "_hoptui"):
        return
    init_trackers, backward = Accelerator.init_trackers, Accelerator.backward
    prepare = Accelerator.prepare

    @functools.wraps(init_trackers)
    def init_with_tracker(self: Any, project_name: str, config: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = init_trackers(self, project_name, config, *args, **kwargs)
        tracker = _tracker_of(self, project_name, kwargs.get("init_kwargs"))
        if tracker is not None and tracker.tracker is None:
            tracker.begin(self, project_name, config)
        return found

    @functools.wraps(prepare)
    def prepare_with_tracker(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = prepare(self, *args, **kwargs)
        if _installed and not _active and self._optimizers and not _of_trainer():
            name = _installed[0] or Path(sys.argv[0] or "accelerate").stem
            if not any(isinstance(each, HoptuiTracker) for each in self.log_with):
                HoptuiTracker(name).begin(self, name, None)
        return found

    @functools.wraps(backward)
    def backward_with_tracker(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _active and _active[0]._accelerator is self:
            _active[0].before_backward()
        return backward(self, *args, **kwargs)

    init_with_tracker._hoptui = True  # type: ignore[attr-defined]
    Accelerator.init_trackers, Accelerator.prepare = init_with_tracker, prepare_with_tracker
    Accelerator.backward = backward_with_tracker
    for optimizer in _optimizer_classes():
        optimizer.step = _with_tracker(optimizer.step)
    for kind in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        if (loader := getattr(data_loader, kind, None)) is not None and "__iter__" in vars(loader):
            loader.__iter__ = _followed(loader.__iter__)
    if hasattr(tracking, "register_tracker_class"):
        tracking.register_tracker_class(HoptuiTracker)


def _tracker_of(accelerator: Any, project: str, init_kwargs: Any) -> HoptuiTracker | None:
    """Return the tracker of an accelerator. Accelerate itself begins trackers on its main process alone."""
    for tracker in (*accelerator.trackers, *accelerator.log_with):
        if isinstance(tracker, HoptuiTracker):
            break
    else:
        if HoptuiTracker.name not in map(str, accelerator.log_with):
            return None
        options = (init_kwargs or {}).get(HoptuiTracker.name, {})
        try:
            tracker = HoptuiTracker(project, **options)
        except TypeError as error:
            log.warning("hoptui is off in this run: init_kwargs: %s", error)
            return None
    if tracker not in accelerator.trackers:
        accelerator.trackers.append(tracker)
    return tracker


def _optimizer_classes() -> list[Any]:
    """Return the classes of prepared optimizers. That of DeepSpeed has a step that does nothing."""
    try:
        from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper
    except ImportError:
        return [AcceleratedOptimizer]
    return [AcceleratedOptimizer, DeepSpeedOptimizerWrapper]


def _with_tracker(step: Callable[..., Any]) -> Callable[..., Any]:
    """Follow the steps of prepared optimizers."""

    @functools.wraps(step)
    def step_with_tracker(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = step(self, *args, **kwargs)
        if _active:
            _active[0].stepped(self)
        return found

    return step_with_tracker


def _engine_steps(accelerator: Any) -> int | None:
    """Return how many optimizer steps the engine of DeepSpeed has made, None without one."""
    engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
    steps = getattr(engine, "global_steps", None)
    return steps if isinstance(steps, int) else None


def _followed(iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """Follow the batches of a data loader."""

    @functools.wraps(iterate)
    def batches(self: Any) -> Iterator[Any]:
        iterator = iterate(self)
        if not _active:
            yield from iterator
            return
        first = True
        while True:
            tracker = _active[0] if _active else None
            if tracker is not None and tracker.ends(self):
                return
            try:
                batch = next(iterator)
            except StopIteration:
                return
            if tracker is not None:
                if first:
                    tracker.begins(self)
                tracker.fetched(self, batch)
            first = False
            yield batch

    return batches


def _unwrapped(model: Any) -> Any:
    """Return the model inside of the wrapper for several ranks. Wrappers of its `forward` stay."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def _readers_of(loader: Any) -> Any:
    """Return the DataLoader of torch in a prepared one."""
    return loader.base_dataloader if type(loader).__name__ == "DataLoaderShard" else loader


def _with_deepspeed(accelerator: Any) -> bool:
    return str(getattr(accelerator.distributed_type, "value", "")) == "DEEPSPEED"


def _recomputation_obstacle(accelerator: Any, models: torch.nn.Module) -> str:
    if _with_deepspeed(accelerator):
        return "it is not tested with DeepSpeed"
    if accelerator.mixed_precision == "fp8":
        return "fp8 scales by every forward pass, and recomputation adds some"
    reasons = map(activation_recomputation.wrapper_obstacle, accelerator._models)
    return next(filter(None, reasons), "") or activation_recomputation.model_obstacle(models)


def _compilation_obstacle(accelerator: Any) -> str:
    if _with_deepspeed(accelerator):
        return "it is not tested with DeepSpeed"
    if accelerator.mixed_precision == "fp8":
        return "it is not tested with fp8"
    reasons = (compilation.wrapper_obstacle(model) for model in accelerator._models)
    return next(filter(None, reasons), "")


def _optimizers(scheduler: Any) -> list[Any]:
    found = getattr(scheduler, "optimizers", None)
    return list(found) if isinstance(found, list | tuple) else []


def _of_trainer() -> bool:
    """Whether a Trainer of transformers prepares its own accelerator: it has an adapter of its own."""
    frame: Any = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return False
        if str(frame.f_globals.get("__name__", "")).startswith("transformers."):
            return True
        frame = frame.f_back
    return False


_wrap_accelerate()
