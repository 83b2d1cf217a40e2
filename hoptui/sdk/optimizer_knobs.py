"""Knobs of an optimizer of PyTorch: learning rate, weight decay and betas. Nothing here imports torch.

Under a schedule, the knob of the learning rate is the base that the schedule starts from. It stays as it is
while the schedule goes on, so the value that is shown, the value before a change and the value after an undo
are all true at any time. A change scales the base, the other rates that the schedule computes with, and the
rate in effect, all by the same factor. Without a schedule, or under one without a base
(`ReduceLROnPlateau`), the knob is the rate in effect now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from hoptui.domain.knobs import KnobError
from hoptui.sdk.knob_declarations import Knob
from hoptui.sdk.knobs import KnobHandle
from hoptui.sdk.shared_state import Declarations

RATES = ("initial_lr", "max_lr", "min_lr")
"""Entries of a parameter group that schedules compute with."""
PEAK = "max_lr"
"""The entry of a parameter group that OneCycleLR computes its peak from."""
RATE_LISTS = ("base_lrs", "max_lrs")
"""Attributes of schedules with one rate for each group."""
MOST_SCHEDULES = 64
LEAST_RATE, MOST_RATE = 1e-10, 10.0
LARGEST_BETA = 0.999999


class Number:
    """A number in a container, which may be a tensor: it is then changed in place, for compiled steps.

    A tensor on a GPU is read only after it has changed, because reading it waits for the GPU.
    """

    __slots__ = ("_container", "_key", "_known", "_of")

    def __init__(self, container: Any, key: Any) -> None:
        self._container, self._key = container, key
        self._of: tuple[int, int] | None = None
        self._known = math.nan

    def get(self) -> float:
        """Return the number."""
        value = self._container[self._key]
        if (version := getattr(value, "_version", None)) is None:
            return float(value)
        if self._of != (id(value), version):
            self._of, self._known = (id(value), version), float(value)
        return self._known

    def put(self, number: float) -> None:
        """Put a number in its place."""
        value = self._container[self._key]
        if hasattr(value, "fill_"):
            value.fill_(number)
        else:
            self._container[self._key] = number


class LearningRate:
    """The learning rate of an optimizer, of all its groups, and of its schedule."""

    def __init__(self, optimizer: Any, scheduler: Any) -> None:
        self._optimizer = optimizer
        self._schedules = list(schedules(scheduler))
        self.scheduled = any(has_base(one) for one in self._schedules)
        self._reference = next((one for one in self._references() if one.get()), next(self._references()))
        self._kept: list[float] = []  # the last rates in proportion to the knob, for a knob that was 0

    def read(self) -> float:
        """Return the base of the schedule, or without one the rate in effect, of the first group that is not
        frozen by a rate of 0."""
        return self._reference.get()

    def apply(self, wanted: float) -> None:
        """Scale every rate so that `read` returns the wanted one."""
        numbers = list(self._numbers())
        rates, now = [number.get() for number in numbers], self.read()
        if now:
            self._kept = [rate / now for rate in rates]
        elif len(self._kept) != len(rates):
            self._kept = [1.0] * len(rates)
        for number, share in zip(numbers, self._kept, strict=True):
            number.put(wanted * share)

    def _references(self) -> Iterator[Number]:
        groups = self._optimizer.param_groups
        based = next((one for one in self._schedules if has_base(one)), None)
        if based is None:
            return (Number(group, "lr") for group in groups)
        if all(group.get(PEAK) is not None for group in groups):
            return (Number(group, PEAK) for group in groups)
        return (Number(based.base_lrs, i) for i in range(len(based.base_lrs)))

    def _numbers(self) -> Iterator[Number]:
        """Yield each rate once. Two names of one tensor are one rate."""
        seen: set[int] = set()
        for container, key in self._places():
            value = container[key]
            if hasattr(value, "fill_"):
                if id(value) in seen:
                    continue
                seen.add(id(value))
            yield Number(container, key)

    def _places(self) -> Iterator[tuple[Any, Any]]:
        for group in self._optimizer.param_groups:
            yield group, "lr"
            if self.scheduled:
                yield from ((group, key) for key in RATES if group.get(key) is not None)
        for one in self._schedules:
            if has_base(one):
                for name in RATE_LISTS:
                    rates = getattr(one, name, None)
                    if isinstance(rates, list):
                        yield from ((rates, i) for i in range(len(rates)))
            last = getattr(one, "_last_lr", None)
            if isinstance(last, list):
                yield from ((last, i) for i in range(len(last)))


class GroupNumber:
    """A number of every parameter group, such as the weight decay. The groups keep their proportions."""

    def __init__(self, optimizer: Any, key: str) -> None:
        self._optimizer, self._key = optimizer, key
        values = [number.get() for number in self._numbers()]
        self._first = next((i for i, value in enumerate(values) if value), 0)
        reference = values[self._first]
        self._shares = [value / reference if reference else 1.0 for value in values]

    def read(self) -> float:
        """Return the number of the first group where it is not 0."""
        return list(self._numbers())[self._first].get()

    def apply(self, wanted: float) -> None:
        """Set it in all groups in proportion."""
        numbers = list(self._numbers())
        shares = [*self._shares, *[1.0] * (len(numbers) - len(self._shares))]  # groups may be added later
        for number, share in zip(numbers, shares, strict=False):
            number.put(wanted * share)

    def _numbers(self) -> Iterator[Number]:
        return (Number(group, self._key) for group in self._optimizer.param_groups if self._key in group)


class Beta:
    """One of the betas. Groups with another value than the first keep theirs."""

    def __init__(self, optimizer: Any, index: int) -> None:
        self._optimizer, self._index = optimizer, index

    def read(self) -> float:
        """Return the beta of the first group."""
        return float(self._optimizer.param_groups[0]["betas"][self._index])

    def apply(self, wanted: float) -> None:
        """Set it in the groups that have the same as the first."""
        before = self.read()
        for group in self._optimizer.param_groups:
            if "betas" not in group or float(group["betas"][self._index]) != before:
                continue
            betas = list(group["betas"])
            if hasattr(betas[self._index], "fill_"):
                betas[self._index].fill_(wanted)
                continue
            betas[self._index] = wanted
            group["betas"] = tuple(betas)


def declare_optimizer(
    declarations: Declarations, optimizer: Any, scheduler: Any, prefix: str
) -> dict[str, KnobHandle[Any]]:
    """Declare the knobs of an optimizer that it has. What is not accepted is left out, and reported."""
    handles: dict[str, KnobHandle[Any]] = {}

    def declare(name: str, make: Callable[[], Any], limits: Callable[[float], Knob]) -> None:
        try:
            source = make()
            value = source.read()
            found = declarations.declare(
                limits(value), prefix + name, float(value), source.apply, source.read
            )
        except Exception as error:
            declarations.refuse(prefix + name, error)
            return
        handles[name] = found

    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        declarations.refuse(f"{prefix}lr", KnobError(f"{type(optimizer).__name__} has no parameter groups"))
        return {}
    declarations.optimizers.add(prefix, optimizer)
    first = groups[0]
    if first.get("lr") is not None:
        declare("lr", lambda: LearningRate(optimizer, scheduler), lambda rate: _rate(rate, scheduler))
    if any("weight_decay" in group for group in groups):
        declare("weight_decay", lambda: GroupNumber(optimizer, "weight_decay"), _decay)
    cycled = any(getattr(one, "cycle_momentum", False) for one in schedules(scheduler))
    for index in range(len(first.get("betas", ())[:2])):
        if index or not cycled:  # such a schedule sets the first one itself
            declare(f"beta{index + 1}", partial(Beta, optimizer, index), _beta)
    return handles


def schedules(scheduler: Any) -> Iterator[Any]:
    """Yield the schedules of PyTorch in a wrapper such as accelerate's, or in a sequence of several."""
    waiting: list[Any] = [scheduler]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_SCHEDULES:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, list | tuple):
            waiting.extend(one)
            continue
        yield one
        waiting.append(getattr(one, "scheduler", None))
        waiting.extend(getattr(one, "_schedulers", ()) or ())


def has_base(scheduler: Any) -> bool:
    """Return whether a schedule computes the rate from a base."""
    return isinstance(vars_of(scheduler).get("base_lrs"), list) and bool(scheduler.base_lrs)


def vars_of(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object itself: those that a wrapper passes on are not its own."""
    return getattr(thing, "__dict__", {})


def _rate(rate: float, scheduler: Any) -> Knob:
    names = [type(one).__name__ for one in schedules(scheduler) if has_base(one)]
    return Knob(
        min(LEAST_RATE, rate) if rate >= 0 else rate,
        max(MOST_RATE, rate),
        scale="log" if rate > 0 else "linear",
        description=f"base of {names[0]}; the rate in effect follows it"
        if names
        else "learning rate in effect",
    )


def _decay(value: float) -> Knob:
    return Knob(min(0.0, value), max(10.0, value), description="of the first group that has one")


def _beta(value: float) -> Knob:
    return Knob(min(0.0, value), max(LARGEST_BETA, value))
