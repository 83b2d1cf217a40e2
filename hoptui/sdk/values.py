"""Numbers as training scripts log them, made plain floats without ever raising, waiting or touching the GPU's queue.

A CUDA tensor is copied asynchronously into pinned memory and read one iteration late: `.item()` would stall the
training thread, and from another thread it would break a CUDA graph that is being captured.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

WAITING = 64
"""Rows whose copies may be on their way: a loop that is further ahead of its GPU loses the newest, counted."""

_FLOATS = {float}
_NUMBERS = {float, int}
Entry = tuple[int, int, dict[str, float]]


class Settler:
    """Turns logged values into floats; `bad` counts the ones that are none."""

    def __init__(self) -> None:
        self.bad = 0
        self.waiting: deque[tuple[Any, Any, tuple[str, ...], int, int]] = deque()

    def settle(self, t: int, step: int, values: Mapping[str, Any]) -> dict[str, float]:
        """The values known now, in a dict of their own. CUDA tensors among them come later, from `late`."""
        kinds = set(map(type, values.values()))
        if kinds == _FLOATS:
            return dict(values)
        if kinds <= _NUMBERS:
            try:
                return {name: float(value) for name, value in values.items()}
            except OverflowError:
                pass
        known: dict[str, float] = {}
        on_gpu: dict[str, Any] = {}
        for name, value in values.items():
            kind = value.__class__
            if kind is float or kind is int:
                try:
                    known[name] = float(value)
                except OverflowError:
                    known[name] = math.inf if value > 0 else -math.inf
                    self.bad += 1
            elif getattr(value, "is_cuda", False):
                on_gpu[name] = value
            else:
                self._odd(name, value, known)
        if on_gpu:
            self._copy(t, step, on_gpu)
        return known

    def late(self) -> list[Entry]:
        """The rows whose copies have arrived; never waits for one."""
        arrived: list[Entry] = []
        while self.waiting:
            event, pinned, names, t, step = self.waiting[0]
            try:
                if not event.query():
                    break
                arrived.append((t, step, dict(zip(names, pinned.tolist(), strict=True))))
            except Exception:
                self.bad += len(names)
            self.waiting.popleft()
        return arrived

    def _odd(self, name: str, value: Any, known: dict[str, float]) -> None:
        try:
            # torch warns where a tensor becomes a number that a gradient could still go through.
            known[name] = float(value.detach() if getattr(value, "requires_grad", False) else value)
        except Exception:
            self.bad += 1

    def _copy(self, t: int, step: int, on_gpu: dict[str, Any]) -> None:
        torch: Any = sys.modules.get("torch")
        try:
            if torch is None or len(self.waiting) >= WAITING or torch.cuda.is_current_stream_capturing():
                self.bad += len(on_gpu)
                return
            with torch.no_grad():
                stacked = torch.stack([v.detach().reshape(()).to(torch.float64) for v in on_gpu.values()])
            pinned = torch.empty(len(on_gpu), dtype=torch.float64, pin_memory=True)
            pinned.copy_(stacked, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.waiting.append((event, pinned, tuple(on_gpu), t, step))
        except Exception:
            self.bad += len(on_gpu)


def plain_name(name: object) -> str:
    """A metric's name as text that can travel, at most 100 characters."""
    return travelling(name, 100)


def travelling(text: object, most: int) -> str:
    """Text that can travel: lone surrogates replaced, at most `most` characters."""
    return str(text).encode("utf-8", "replace").decode()[:most]
