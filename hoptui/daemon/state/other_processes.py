"""The share of the CPUs that processes other than a run's use, and its change beside a measured effect."""

from __future__ import annotations

import math
from statistics import fmean

from hoptui.daemon.state.row_buffers import Rings
from hoptui.domain.facts import Fact, fact
from hoptui.tuner.outside_load import differs

BEFORE_NS, AFTER_NS = 20_000_000_000, 60_000_000_000
"""The times before and after a change of a knob that are compared: as long as most effects are measured."""
ENOUGH = 3
"""Readings that suffice, one a second."""
ROWS = 2048


def others_busy(rings: Rings, run: str, cpus: int, since: int, until: int, least: int = 1) -> float | None:
    """Return the mean share between two stamps (0 to 1), None if there are not the `least` readings of it."""
    host, own = (_percents(rings, source, since, until) for source in ("host", f"process/{run}"))
    if min(len(host), len(own)) < least or not cpus:
        return None
    return max(0.0, (fmean(host) - fmean(own) / cpus) / 100)


def load_changed(rings: Rings, run: str, cpus: int, began: int, at: int, now: int) -> Fact | None:
    """Return how it has changed by a change of a knob. None if it has not, or is unknown.

    Args:
        cpus: How many the host has.
        began: The stamp at which the run paused for the change. A compiler may count as another process.
        at: The stamp at which it went on.
    """
    end = min(now, at + AFTER_NS)
    before = others_busy(rings, run, cpus, began - BEFORE_NS, began, ENOUGH)
    after = others_busy(rings, run, cpus, at, end, ENOUGH)
    if before is None or after is None:
        return None
    host = fmean(_percents(rings, "host", at, end)) / 100
    if not differs(before, after, host):
        return None
    return fact("effect.load_changed", before=round(before, 2), after=round(after, 2))


def _percents(rings: Rings, source: str, since: int, until: int) -> list[float]:
    ring = rings.get(source)
    rows = ring.excerpt(("cpu_percent",), after=since, most=ROWS) if ring is not None else None
    if rows is None or "cpu_percent" not in rows.names:
        return []
    found = zip(rows.times(), rows.column("cpu_percent"), strict=True)
    return [value for t, value in found if t <= until and not math.isnan(value)]
