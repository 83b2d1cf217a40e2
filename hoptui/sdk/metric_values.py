"""Conversion of logged values to floats. It never raises, never waits and never blocks the GPU's queue.

A CUDA tensor is copied asynchronously to pinned memory and read one iteration later. `.item()` would block
the training thread, and from another thread it would break a CUDA graph capture.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from hoptui.domain.facts import clean_text

COPIES_IN_FLIGHT = 64
"""Rows whose copies may be in flight. Values beyond that are lost and counted."""

MICROSECONDS = 6
"""Decimals of a duration. Further ones are noise, and a recording cannot compress noise."""

TimedRow = tuple[int, int, dict[str, float]]
"""Monotonic nanoseconds, step, values by metric."""

_FLOATS = {float}
_NUMBERS = {float, int}


class MetricConverter:
    """Converts logged values to floats. `bad` counts the values that are not numbers."""

    def __init__(self) -> None:
        self.bad = 0
        self.in_flight: deque[tuple[Any, Any, tuple[str, ...], int, int]] = deque()

    def convert(self, t: int, step: int, values: Mapping[str, Any]) -> dict[str, float]:
        """Return the values that are known now, in a new dict. `late_rows` returns CUDA tensors later."""
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
                self._convert_other(name, value, known)
        if on_gpu:
            self._start_copy(t, step, on_gpu)
        return known

    def late_rows(self) -> list[TimedRow]:
        """Return the rows whose copies are complete. Never waits for a copy."""
        complete: list[TimedRow] = []
        while self.in_flight:
            event, pinned, names, t, step = self.in_flight[0]
            try:
                if not event.query():
                    break
                complete.append((t, step, dict(zip(names, pinned.tolist(), strict=True))))
            except Exception:
                self.bad += len(names)
            self.in_flight.popleft()
        return complete

    def _convert_other(self, name: str, value: Any, known: dict[str, float]) -> None:
        if isinstance(value, str | bytes | bytearray):  # float() would read them
            self.bad += 1
            return
        try:
            # torch warns if a tensor that requires a gradient is converted to a number.
            known[name] = float(value.detach() if getattr(value, "requires_grad", False) else value)
        except Exception:
            self.bad += 1

    def _start_copy(self, t: int, step: int, on_gpu: dict[str, Any]) -> None:
        torch: Any = sys.modules.get("torch")
        try:
            full = len(self.in_flight) >= COPIES_IN_FLIGHT
            if torch is None or full or torch.cuda.is_current_stream_capturing():
                self.bad += len(on_gpu)
                return
            with torch.no_grad():
                stacked = torch.stack([v.detach().reshape(()).to(torch.float64) for v in on_gpu.values()])
            pinned = torch.empty(len(on_gpu), dtype=torch.float64, pin_memory=True)
            pinned.copy_(stacked, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.in_flight.append((event, pinned, tuple(on_gpu), t, step))
        except Exception:
            self.bad += len(on_gpu)


def clean_name(name: object) -> str:
    """Return a name as valid Unicode of at most 100 characters."""
    return clean_text(name, 100)
