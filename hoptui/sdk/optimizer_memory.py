"""The memory of a GPU that the parameters and the state of optimizers hold, whatever the size of a batch.

Nothing here imports torch, and nothing waits for a GPU. Only what is surely there is counted, by the storages
of plain tensors. Gradients are left out: they are not always there when memory is fullest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

EVERY_NS = 5_000_000_000
COST = 3000
"""A reading that took t is repeated after 3000 t at the earliest."""
DEEPEST = 3
"""Some optimizers keep lists of tensors in the state of a parameter."""


class OptimizerMemory:
    """Reads how many bytes the declared optimizers hold. `held_bytes` is 0 while that is unknown.

    Args:
        kind: The kind of device that counts.
    """

    def __init__(self, kind: str = "cuda") -> None:
        self.held_bytes = 0
        self.next_read = 0
        self._kind = kind
        self._optimizers: dict[str, Any] = {}

    def add(self, prefix: str, optimizer: Any) -> None:
        """Count this optimizer as well. It replaces an earlier one with the same prefix."""
        self._optimizers[prefix] = optimizer
        self.next_read = 0

    def read(self, now: int) -> None:
        """Read the bytes again, in the thread that trains and between iterations. `now` is monotonic ns."""
        if not self._optimizers:
            return
        begun = time.perf_counter_ns()
        try:
            self.held_bytes = self._sum()
        except Exception:  # an optimizer that is unlike those of torch
            self.held_bytes = 0
        self.next_read = now + max(EVERY_NS, COST * (time.perf_counter_ns() - begun))

    def _sum(self) -> int:
        """Return the bytes on the one GPU that has some; 0 if several have."""
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return 0
        plain = (torch.Tensor, torch.nn.Parameter)
        storages: dict[int, int] = {}
        devices: set[int | None] = set()
        for found in self._tensors(torch.Tensor):
            tensor = getattr(found, "_local_tensor", found)  # of a DTensor: the part of this process
            if (
                type(tensor) not in plain
                or tensor.layout != torch.strided
                or tensor.device.type != self._kind
            ):
                continue
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()  # parameters may share one
            devices.add(tensor.device.index)
        return sum(storages.values()) if len(devices) == 1 else 0

    def _tensors(self, kind: type) -> Iterator[Any]:
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                yield from _within(group["params"], kind)
            yield from _within(getattr(optimizer, "state", None), kind, DEEPEST)


def _within(value: Any, kind: type, depth: int = 1) -> Iterator[Any]:
    """Yield the tensors in containers in one another."""
    if isinstance(value, kind):
        yield value
    elif depth and hasattr(value, "values"):
        for one in value.values():
            yield from _within(one, kind, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for one in value:
            yield from _within(one, kind, depth - 1)
