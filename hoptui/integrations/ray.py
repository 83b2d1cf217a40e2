"""Ray Train: the workers of a `TorchTrainer` as one run.

Example:
    ```python
    from hoptui.integrations.ray import hoptui_loop

    trainer = TorchTrainer(hoptui_loop(train_func), run_config=RunConfig(name="mnist"), ...)
    ```

An iteration is one step of the optimizer. The name of the run is the name in `RunConfig`. Metrics are those
that the function reports with `ray.train.report`. Samples are counted in torch's DataLoader and in
`iter_torch_batches`, where gradients are on, and multiplied by the number of workers.

A function that trains with transformers or Lightning takes their adapters instead, inside the function.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import ray.data
import ray.train
import torch

# `hoptui run` imports this before `ray.train` has the attribute `torch`.
from ray.train.torch import TorchTrainer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

import hoptui
from hoptui.integrations.batch_size import sample_count
from hoptui.integrations.error_guard import harmless
from hoptui.integrations.versions import Supported

log = logging.getLogger("hoptui")
SUPPORTED = Supported("ray", "2.51", "2.60")
_MARK = "__hoptui_loop__"


class TrainingStopped(BaseException):
    """Ends the function of a worker after `hoptui stop`. The workers end behind the same optimizer step.

    It is no `Exception`, so that the function does not take it for an error. The worker ends normally.
    """


def hoptui_loop(train_loop: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Return a function for `TorchTrainer` that trains as this one, as a run of hoptui.

    Where hoptui cannot be imported on a worker, it trains without it.

    Args:
        train_loop: What `TorchTrainer` calls on each worker. It takes nothing, or the config.
        name: The name of the run. None: that of `RunConfig`.

    Example:
        ```python
        trainer = TorchTrainer(hoptui_loop(train_func), scaling_config=ScalingConfig(num_workers=2))
        ```
    """
    # Only the process of the driver has these variables. A nested function goes to the workers by its value.
    settings = {key: value for key, value in os.environ.items() if key.split("_")[0] == "HOPTUI"}

    @functools.wraps(train_loop)
    def observed(*arguments: Any) -> Any:
        try:
            from hoptui.integrations.ray import observe
        except ImportError as error:
            logging.getLogger("hoptui").warning("hoptui is off in this worker: %s", error)
            return train_loop(*arguments)
        return observe(functools.partial(train_loop, *arguments), name, settings)

    setattr(observed, _MARK, True)
    return observed


def current_run() -> hoptui.Run:
    """Return the run of this worker, inside the function that `hoptui_loop` wraps.

    Raises:
        RuntimeError: outside of such a function.

    Example:
        ```python
        def train_func(config):
            current_run().bind(config, batch_size=(1, 512))
        ```
    """
    if _worker is None:
        raise RuntimeError("current_run() works inside a function that hoptui_loop has wrapped.")
    return _worker.run


def checkpoint_wanted() -> bool:
    """Whether somebody waits for a checkpoint. It is the same on all workers, between two optimizer steps.

    Report one with `ray.train.report` then. A function that does not ask serves the request with the next
    checkpoint that it reports anyway.

    Example:
        ```python
        if epoch % 10 == 0 or checkpoint_wanted():
            ray.train.report(metrics, checkpoint=checkpoint)
        ```
    """
    return _worker is not None and _worker.checkpoint_wanted


def install(name: str | None = None) -> None:
    """From now on each `TorchTrainer` of this process trains as a run, unless its function is wrapped.

    Args:
        name: See `hoptui_loop`.

    Example:
        ```python
        install()
        ```
    """
    original = TorchTrainer.__init__
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def init(self: Any, train_loop_per_worker: Callable[..., Any], *rest: Any, **options: Any) -> None:
        if not getattr(train_loop_per_worker, _MARK, False):
            train_loop_per_worker = hoptui_loop(train_loop_per_worker, name)
        original(self, train_loop_per_worker, *rest, **options)

    setattr(init, _MARK, True)
    TorchTrainer.__init__ = init


def observe(train_loop: Callable[[], Any], name: str | None, settings: dict[str, str]) -> Any:
    """Train on this worker as a run. `hoptui_loop` calls it.

    Args:
        train_loop: The function with its arguments.
        name: See `hoptui_loop`.
        settings: The variables of hoptui on the machine of the driver. Those of the worker come first.

    Example:
        ```python
        observe(train_func, "mnist", {})
        ```
    """
    global _worker
    for key, value in settings.items():
        os.environ.setdefault(key, value)
    SUPPORTED.warn()
    context = ray.train.get_context()
    run = hoptui.connect(name or context.get_experiment_name() or "ray-train")
    with ExitStack() as stack:
        worker = _worker = RayWorker(run, context.get_world_size())
        stack.callback(_forget)
        worker.enter(stack)
        try:
            found = train_loop()
        except TrainingStopped:
            found = None
        except BaseException as error:
            run.close("exception", f"{type(error).__name__}: {error}")
            raise
    worker.discard()
    run.close()  # Ray ends the process of a worker without its exit handlers
    return found


class RayWorker:
    """What hoptui does in the process of one worker: it hears of steps, batches and reports.

    Args:
        run: The run of all workers, as this one sees it.
        world: The number of workers.
    """

    def __init__(self, run: hoptui.Run, world: int) -> None:
        self.run = run
        self.checkpoint_wanted = False
        self._world = world
        self._samples = 0
        self._steps = 0
        self._over = False
        self._optimizer: torch.optim.Optimizer | None = None
        self._schedulers: dict[int, Any] = {}
        restored = ray.train.get_checkpoint()
        self._last_checkpoint: str = restored.path if restored is not None else ""

    @harmless
    def enter(self, stack: ExitStack) -> None:
        """Hear of everything until the stack is left."""
        stack.callback(register_optimizer_step_post_hook(self._stepped).remove)
        _replace(stack, ray.train, "report", self._reported(ray.train.report))
        _replace(stack, dataloader._BaseDataLoaderIter, "__next__", self._drawn(_NEXT))
        _replace(stack, torch.optim.lr_scheduler.LRScheduler, "__init__", self._scheduled(_SCHEDULE))
        _replace(stack, ray.data.DataIterator, "iter_torch_batches", self._batches(_BATCHES))
        self.run.on_checkpoint(self._want_checkpoint)

    @harmless
    def discard(self) -> None:
        """Drop what followed the last step: it is not an iteration."""
        self.run._core.recorder.discard()

    def give_up(self) -> None:
        """End the run after an error of this class."""
        self._over = True
        self.run.close()

    @harmless
    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling() or self._over:  # the compiler follows a step into its hooks
            return
        if self._optimizer is None:
            self._optimizer = optimizer
            self.run.metric("samples_per_s", unit="samples/s", headline=True)
            self.run.optimizer(optimizer, self._schedulers.get(id(optimizer)))
        if optimizer is not self._optimizer:
            return  # the second optimizer of the same iteration
        if self._samples:
            self.run.log(samples=self._samples * self._world)
            self._samples = 0
        self._steps += 1
        if not self.run.boundary(self._steps):
            raise TrainingStopped

    def _want_checkpoint(self) -> object:
        self.checkpoint_wanted = True
        return hoptui.LATER

    def _reported(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def report(metrics: dict[str, Any], checkpoint: Any = None, *rest: Any, **options: Any) -> Any:
            found = original(metrics, checkpoint, *rest, **options)
            self._tell(metrics)
            return found

        return report

    @harmless
    def _tell(self, metrics: dict[str, Any]) -> None:
        """The worker has reported metrics, perhaps with a checkpoint."""
        numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
        self.run.log(numbers, step=max(0, self._steps - 1))  # of the step before: there may be no next one
        # A worker may report metrics alone while another one reports the checkpoint of all.
        newest = ray.train.get_checkpoint()
        path = newest.path if newest is not None else ""
        if path != self._last_checkpoint:
            self._last_checkpoint, self.checkpoint_wanted = path, False
            # A path in other storage has no scheme: Ray's own words name the storage.
            self.run.checkpointed(newest if newest is not None and not _on_disk(newest) else path)

    def _drawn(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(iterator: Any) -> Any:
            batch = original(iterator)
            self._count(batch)
            return batch

        return draw

    def _batches(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def batches(iterator: Any, *arguments: Any, **options: Any) -> Iterable[Any]:
            return _Counted(original(iterator, *arguments, **options), self._count)

        return batches

    def _scheduled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def schedule(scheduler: Any, optimizer: Any, *arguments: Any, **options: Any) -> None:
            original(scheduler, optimizer, *arguments, **options)
            self._schedulers[id(optimizer)] = scheduler

        return schedule

    @harmless
    def _count(self, batch: Any) -> None:
        if torch.is_grad_enabled():
            self._samples += sample_count(batch) or 0


class _Counted:
    """The batches of a Ray dataset, which may be iterated again for each epoch."""

    def __init__(self, batches: Iterable[Any], count: Callable[[Any], None]) -> None:
        self._batches, self._count = batches, count

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self._count(batch)
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _on_disk(checkpoint: Any) -> bool:
    return getattr(checkpoint.filesystem, "type_name", "local") == "local"


def _replace(stack: ExitStack, place: Any, name: str, value: object) -> None:
    original = inspect.getattr_static(place, name)
    setattr(place, name, value)
    stack.callback(setattr, place, name, original)


def _forget() -> None:
    global _worker
    _worker = None


_NEXT = dataloader._BaseDataLoaderIter.__next__
_SCHEDULE = torch.optim.lr_scheduler.LRScheduler.__init__
_BATCHES = ray.data.DataIterator.iter_torch_batches
_worker: RayWorker | None = None
