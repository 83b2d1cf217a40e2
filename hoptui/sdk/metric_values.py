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

COUNTS = ("env_steps", "tokens", "samples")
"""Metrics that count the work of one iteration."""
RATES = tuple((name, f"{name}_per_s") for name in COUNTS)
"""Each of them, and the rate that it gives."""

TimedRow = tuple[int, int, dict[str, float]]
"""Monotonic nanoseconds, step, values by metric."""
QueuedRow = tuple[int, int, dict[str, float], int | None, dict[str, float]]
"""A row as the training thread leaves it: a `TimedRow`, how long its iteration took in nanoseconds (None: it
is not known, or the row is not that of an iteration), and seconds by phase."""


def complete(row: QueuedRow) -> TimedRow:
    """Add to a row what follows from its iteration: its duration, its phases and its rates.

    The link thread does that for many rows at a time. In the training thread it would find cold caches.
    """
    t, step, values, spent_ns, phases = row
    if spent_ns is not None:
        add_rates(values, spent_ns / 1e9)
        values["iteration_s"] = (spent_ns + 500) // 1000 / 1e6  # rounded, and faster than round()
    for path, seconds in phases.items():
        values[f"phase/{path}"] = round(seconds, MICROSECONDS)
    return t, step, values


def add_rates(values: dict[str, float], seconds: float) -> None:
    """Add the rates of an iteration that took so long."""
    if seconds > 0:
        for name, per_s in RATES:
            if name in values:
                rate = values[name] / seconds
                values[per_s] = round(rate, 3) if rate >= 1 else rate


class MetricConverter:
    """Converts logged values to floats. `bad` counts the values that are not numbers."""

    def __init__(self) -> None:
        self.bad = 0
        self.in_flight: deque[tuple[Any, Any, tuple[str, ...], int, int]] = deque()

    def convert(self, t: int, step: int, values: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the values that are known now. `late_rows` returns CUDA tensors later.

        The answer may be `values` itself: copy it before you keep it.
        """
        for value in values.values():
            if value.__class__ is not float:
                return self.convert_mixed(t, step, values)
        return values

    def convert_mixed(self, t: int, step: int, values: Mapping[str, Any]) -> dict[str, float]:
        """Do the same for values that are not all floats. The answer is never `values` itself."""
        known: dict[str, float] = {}
        on_gpu: dict[str, Any] = {}
        for name, value in values.items():
            kind = value.__class__
            if kind is float:
                known[name] = value
            elif kind is int:
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
