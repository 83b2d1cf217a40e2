"""How many samples an iteration has used, from the DataLoaders of torch."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping
from threading import get_ident
from typing import Any, Protocol

SIZES = "_hoptui_sizes"
"""The attribute of an iterator of a DataLoader with its `OrderedSizes`."""
DEEPEST = 4
"""How deep in a batch its first tensor is looked for."""


class Phase(Protocol):
    """A phase of the iteration. It is timed from `begin` to `end`."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class OrderedSizes(deque[int]):
    """The sizes of the batches that an iterator has ordered.

    `replicas` is what the function `replicas` returned for it, 0 before that.
    """

    replicas = 0


class BatchCounts:
    """Counts the samples in the batches that the DataLoaders of this process return.

    An iteration used the batches of one dataset: of the one that returned a batch last. So the batches of a
    validation between two steps do not count. A batch whose size is not known makes the number unknown.

    The iterators keep their types and what they return. `phase` times the wait for a batch in the thread
    that trains. It is None while nobody counts.
    """

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self._thread = 0
        self._ranks = 1
        self._waiting = False
        self._counts: dict[int, int | None] = {}
        self._last = 0

    def begin(self, phase: Phase, thread: int, ranks: int) -> None:
        """Count from now on. `ranks` processes read as many samples each."""
        self._thread, self._ranks, self.phase = thread, ranks, phase

    def take(self) -> int | None:
        """Return the samples of all ranks since the last call. None if they are not known."""
        found = self._counts.get(self._last)
        self._counts.clear()
        return found

    def returned(self, iterator: Any, batch: object, ordered: int | None, order: OrderedSizes | None) -> None:
        """An iterator has returned a batch. `ordered`: how many indices it was ordered by, if it was."""
        self._last = key = id(iterator._dataset)
        before = self._counts.get(key, 0)
        size = batch_size(iterator, batch) if ordered is None else ordered
        if before is None or size is None:
            self._counts[key] = None
            return
        of = order.replicas if order is not None else 0
        if not of:
            of = replicas(iterator, self._ranks)
            if order is not None:
                order.replicas = of
        self._counts[key] = before + size * of

    def watch(self, dataloader: Any) -> None:
        """Follow all iterators of `torch.utils.data.dataloader`."""
        base = dataloader._BaseDataLoaderIter
        following, ordering, resetting = base.__next__, base._next_index, base._reset

        @functools.wraps(following)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            phase = self.phase
            if phase is None or self._waiting or get_ident() != self._thread:
                batch = following(iterator)
            else:
                self._waiting = True  # a dataset may have a DataLoader of its own
                phase.begin()
                try:
                    batch = following(iterator)
                finally:
                    phase.end()
                    self._waiting = False
            order = iterator.__dict__.get(SIZES)
            ordered = order.popleft() if order else None
            if phase is not None and not self._waiting:
                try:
                    self.returned(iterator, batch, ordered, order)
                except Exception:  # an error of hoptui must not reach the script
                    self._counts[id(iterator._dataset)] = None
            return batch

        @functools.wraps(ordering)
        def _next_index(iterator: Any) -> Any:
            index = ordering(iterator)
            if isinstance(index, list) and index and index[0] is not None:
                order = iterator.__dict__.get(SIZES)
                if order is None:
                    order = iterator.__dict__[SIZES] = OrderedSizes()
                order.append(len(index))
            return index

        @functools.wraps(resetting)
        def _reset(iterator: Any, *args: Any, **kwargs: Any) -> None:
            vars(iterator).pop(SIZES, None)
            resetting(iterator, *args, **kwargs)

        base.__next__, base._next_index, base._reset = __next__, _next_index, _reset


def batch_size(iterator: Any, batch: object) -> int | None:
    """Return the number of samples in a batch that was not ordered by indices. None: unknown.

    It is the leading dimension, at most the `batch_size` of the DataLoader. Without a `batch_size`, all
    tensors of the batch must have the same leading dimension, and be two at least.
    """
    found: list[int] = []
    _leading(batch, found, DEEPEST)
    most = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    if most is not None:
        return min(found[0], most) if found else None
    return found[0] if len(found) > 1 and len(set(found)) == 1 else None


def replicas(iterator: Any, ranks: int) -> int:
    """Return over how many processes the samples are distributed."""
    sampler = getattr(iterator, "_index_sampler", None)
    sampler = getattr(sampler, "sampler", sampler)
    return int(getattr(sampler, "num_replicas", None) or ranks)


def _leading(value: object, found: list[int], deep: int) -> None:
    """Append the leading dimensions of the tensors in a batch."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        if len(shape):
            found.append(int(shape[0]))
    elif deep and isinstance(value, Mapping):
        for item in value.values():
            _leading(item, found, deep - 1)
    elif deep and isinstance(value, (list, tuple)):
        for item in value:
            _leading(item, found, deep - 1)
