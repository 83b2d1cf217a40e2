"""The optimizers and schedulers of a script: which one makes the iterations, and its learning rate."""

from __future__ import annotations

import functools
import weakref
from threading import get_ident
from typing import Any

MOST_NESTED = 64
"""Steps within one step. After more, that step has raised and will never end."""
SCHEDULES_DEEP = 4
TAKES_OVER = 8
"""An optimizer makes the iterations once it has taken so many steps without the one that made them before."""
STEPS = {
    "fastai.optimizer": ("Optimizer", "step"),
    "keras.src.backend.torch.optimizers.torch_parallel_optimizer": (
        "TorchParallelOptimizer",
        "_backend_update_step",
    ),
}
"""Optimizers of frameworks that are not those of torch: their module, class and the method that steps. Keras
calls `apply` for each micro-batch, and this method where it changes the weights."""


class IterationOptimizer:
    """The optimizer whose steps are the iterations: the one that stepped first.

    A script may have several, such as a GAN. Another one takes over after `TAKES_OVER` steps of its own
    without a step of this one: then this one is no longer used, or only now and then. All ranks of a run
    come to the same answer, because it follows from the order of the steps alone.

    An optimizer that steps within a step of another one, as one that it wraps, ends no iteration.
    """

    def __init__(self) -> None:
        self.reference: weakref.ref[Any] | None = None
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._seen = 0
        self._steps: dict[int, int] = {}  # of others since the last step of this one, by their numbers
        self._nested = 0
        # By thread, the ids of the optimizers that step in it, the outer ones first. Access to a
        # `threading.local` takes 5 µs after other work.
        self._open: dict[int, list[int]] = {}

    @property
    def now(self) -> Any:
        """The optimizer that makes the iterations. None: it is gone. It is not kept alive here."""
        return None if self.reference is None else self.reference()

    def begins(self, optimizer: Any) -> None:
        """An optimizer begins a step. A step that raises never ends."""
        thread, key = get_ident(), id(optimizer)
        steps = self._open.get(thread)
        if steps is None:
            steps = self._open[thread] = []
        if steps and key in steps:
            steps.clear()
        steps.append(key)

    def ends_with(self, optimizer: Any) -> bool:
        """An optimizer has taken a step. Return whether it ends an iteration."""
        steps, key = self._open.get(get_ident()), id(optimizer)
        if steps:
            if steps[-1] == key:
                steps.pop()
            elif key in steps:
                del steps[steps.index(key) :]
        if steps:
            self._nested += 1
            if self._nested > MOST_NESTED:
                steps.clear()
            return False
        self._nested = 0
        if self.reference is None:
            self.reference = weakref.ref(optimizer)
            return True
        if self.reference() is optimizer:
            if self._steps:
                self._steps.clear()
            return True
        number = self._numbers.get(optimizer)
        if number is None:
            number = self._numbers[optimizer] = self._seen
            self._seen += 1
        self._steps[number] = self._steps.get(number, 0) + 1
        if self._steps[number] < TAKES_OVER:
            return False
        self.reference = weakref.ref(optimizer)
        self._steps.clear()
        return True


class Schedulers:
    """The newest learning-rate scheduler of each optimizer. A scheduler of others is made after them.

    `made` counts the schedulers.
    """

    def __init__(self) -> None:
        self._newest: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        self.made = 0

    def of(self, optimizer: Any) -> Any:
        """Return the scheduler of an optimizer, None if there is none."""
        found = None if optimizer is None else self._newest.get(optimizer)
        return None if found is None else found()

    def watch(self, lr_scheduler: Any) -> None:
        """Follow the schedulers that are made from now on. `lr_scheduler` is `torch.optim.lr_scheduler`."""
        for name in ("LRScheduler", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau"):
            kind = getattr(lr_scheduler, name, None)
            if kind is not None and "__init__" in vars(kind):
                self._watch_class(kind)

    def _watch_class(self, kind: Any) -> None:
        made = kind.__init__

        @functools.wraps(made)
        def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            made(scheduler, *args, **kwargs)
            try:
                self._newest[scheduler.optimizer] = weakref.ref(scheduler)
                self.made += 1
            except (AttributeError, TypeError):  # one of another kind: it is not followed
                return

        kind.__init__ = __init__


class WeakGroup:
    """A parameter group for knobs that outlive its optimizer. It then has the numbers that were read last."""

    def __init__(self, optimizer: weakref.ref[Any], index: int) -> None:
        self._optimizer, self._index = optimizer, index
        self._known: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        group = self._group()
        if group is None:
            return self._known[key]
        found = group[key]
        if isinstance(found, (int, float)):
            self._known[key] = found
        return found

    def __setitem__(self, key: str, value: object) -> None:
        group = self._group()
        if group is None:
            raise ValueError("the script no longer uses this optimizer")
        group[key] = value

    def __contains__(self, key: object) -> bool:
        group = self._group()
        return key in (self._known if group is None else group)

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry of the group."""
        return self[key] if self.__contains__(key) else default

    def _group(self) -> Any:
        optimizer = self._optimizer()
        if optimizer is None or self._index >= len(optimizer.param_groups):
            return None
        return optimizer.param_groups[self._index]


class WeakOptimizer:
    """An optimizer for knobs that must not keep it alive: its memory is that of the script."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._groups: list[WeakGroup] = []

    @property
    def state(self) -> Any:
        """The state of the optimizer, by parameter. Nothing once the script has dropped it."""
        return getattr(self._optimizer(), "state", None)

    @property
    def param_groups(self) -> list[WeakGroup]:
        """The groups that the optimizer has now, or had last."""
        optimizer = self._optimizer()
        if optimizer is not None:
            for index in range(len(self._groups), len(optimizer.param_groups)):
                self._groups.append(WeakGroup(self._optimizer, index))
            del self._groups[len(optimizer.param_groups) :]
        return self._groups


class ScheduleRates:
    """The rates that a schedule computes with, without the schedule, which keeps its optimizer alive."""


SCHEDULE = ("base_lrs", "max_lrs", "_last_lr", "cycle_momentum")


def rates_of(scheduler: Any, deep: int = SCHEDULES_DEEP) -> Any:
    """Return the rates of a scheduler and of those in it. None without a scheduler.

    The lists are those of the scheduler itself, so that a change of them takes effect.
    """
    if scheduler is None or not deep:
        return None
    found = type(type(scheduler).__name__, (ScheduleRates,), {})()
    own = vars(scheduler)
    vars(found).update((name, own[name]) for name in SCHEDULE if name in own)
    vars(found)["_schedulers"] = [rates_of(one, deep - 1) for one in own.get("_schedulers") or ()]
    return found
