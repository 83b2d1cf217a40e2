"""What the GPUs of a run read during each phase of its iterations. No clock, no I/O.

A sample is a mean over a window of time. It counts for a phase only if its whole window lies within one
stretch of that phase. So a phase that is shorter than the windows is unknown, never wrong.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hoptui.domain.columns import Columns
from hoptui.domain.phases import PhaseReadings, PhaseSpan

SECOND = 1_000_000_000
READINGS = ("sm_active", "tensor_active", "dram_active", "busy", "power_w")
NAMES = (*READINGS, "window_s", "power_average_w")
FEW = 5
"""Fewer samples give no figure."""
KEPT, KEPT_NS = 240, 600 * SECOND
"""Samples of a phase that count: the newest so many, not older than this."""
MOST_PHASES = 24
MOST_SPANS = 512
MARGIN_NS = SECOND // 50
"""A GPU is read a little after the stamp of its row. Rows are stamped before a GPU with others is read."""
DRIVER_NS = 2 * SECOND
"""How far back `busy` may reach: NVML's figure covers up to a second, and is up to a second old. It is used
where there are no performance counters, whose window is known."""
AVERAGE_NS = SECOND
"""How far back `power_w` reaches on drivers that give only an average. Those that also give the power of the
moment give the average as a reading of its own."""
PATIENCE_NS = 3 * SECOND
"""How long a stretch waits for the samples of its end."""


class _Sample(NamedTuple):
    t: int
    window: int
    values: tuple[float, ...]


class PhaseAccount:
    """Collects samples by phase, for one process of a run."""

    def __init__(self) -> None:
        self._coming: deque[PhaseSpan] = deque(maxlen=MOST_SPANS)
        self._found: dict[str, deque[_Sample]] = {}
        self._since = 0
        self.readings: tuple[PhaseReadings, ...] = ()
        """The means, by phases in the order of their first samples."""

    @property
    def waiting(self) -> bool:
        """Whether there are stretches whose samples were not looked at yet."""
        return bool(self._coming)

    def add(self, spans: Iterable[PhaseSpan], newest: int) -> None:
        """Add stretches of phases. Those that end after the stamp `newest` are ignored: they are nonsense."""
        for span in spans:
            if 0 < span.start < span.end <= newest and len(span.path) <= 200:
                self._coming.append(span)

    def clear(self, t: int) -> None:
        """Forget all samples, and stretches that began before `t`: a knob has another value."""
        self._found.clear()
        self._since = t
        self.readings = ()

    def due(self, newest: Sequence[int], now: int) -> list[PhaseSpan]:
        """Take the stretches whose samples are there. `newest` are the stamps of the newest rows of the
        GPUs."""
        known = max(min(newest, default=0), now - PATIENCE_NS)
        ready = [span for span in self._coming if span.end <= known]
        if ready:
            self._coming = deque((s for s in self._coming if s.end > known), maxlen=MOST_SPANS)
        return [span for span in ready if span.start >= self._since]

    def join(self, spans: Sequence[PhaseSpan], gpus: Mapping[str, Columns]) -> None:
        """Add the samples of the rows of each GPU, by UUID, that lie within these stretches."""
        for rows in gpus.values():
            columns = {name: rows.column(name) for name in NAMES if name in rows.names}
            times = rows.times()
            for span in spans:
                first = bisect_left(times, span.start + MARGIN_NS)
                for i in range(first, bisect_right(times, span.end - MARGIN_NS)):
                    values = {name: column[i] for name, column in columns.items()}
                    window = _window(values)
                    if window is not None and times[i] - window >= span.start + MARGIN_NS:
                        self._put(span.path, _Sample(times[i], window, _of(values, window)))
        self._sum_up()

    def _put(self, path: str, sample: _Sample) -> None:
        if path not in self._found and len(self._found) >= MOST_PHASES:
            return
        self._found.setdefault(path, deque(maxlen=KEPT)).append(sample)

    def _sum_up(self) -> None:
        newest = max((samples[-1].t for samples in self._found.values() if samples), default=0)
        found = []
        for path, samples in self._found.items():
            while samples and samples[0].t < newest - KEPT_NS:
                samples.popleft()
            if len(samples) >= FEW and (means := _means(samples)):
                found.append(PhaseReadings(phase=path, samples=len(samples), readings=means))
        self.readings = tuple(found)


def _window(values: Mapping[str, float]) -> int | None:
    """Return the length of the window of a row, None if it has no sample that can be used."""
    counted = values.get("window_s", math.nan)
    if math.isfinite(values.get("sm_active", math.nan)) and 0 < counted < math.inf:
        return int(counted * SECOND)
    return DRIVER_NS if math.isfinite(values.get("busy", math.nan)) else None


def _of(values: Mapping[str, float], window: int) -> tuple[float, ...]:
    """Return the readings of a row, without those that reach back further than its window."""
    reach = {"busy": DRIVER_NS}
    if not math.isfinite(values.get("power_average_w", math.nan)):
        reach["power_w"] = AVERAGE_NS
    return tuple(
        values.get(name, math.nan) if reach.get(name, 0) <= window else math.nan for name in READINGS
    )


def _means(samples: Iterable[_Sample]) -> dict[str, float]:
    """Return the mean of each reading that enough samples have. A sample counts by its window."""
    found = {}
    for i, name in enumerate(READINGS):
        known = [(s.window, s.values[i]) for s in samples if math.isfinite(s.values[i])]
        if len(known) >= FEW:
            found[name] = float(f"{sum(w * v for w, v in known) / sum(w for w, _ in known):.4g}")
    return found
