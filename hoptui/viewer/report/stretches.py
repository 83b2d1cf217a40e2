"""The beginning and the end of a run, to be compared: which seconds they are, and the figures over them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from hoptui.domain.throughput import level, usable
from hoptui.protocol.messages import CommandRecord
from hoptui.recording import Recording
from hoptui.viewer.report.facts import ITERATION, Stretch

SECOND = 1_000_000_000
LONGEST_S = 60.0
PART = 3  # of a run that nobody changed: its first and its last third, where that is shorter
FEWEST = 3  # iterations that figures are taken of
POINTS = 240  # in place of rows that are no longer kept
OF_GPUS = (
    "busy", "sm_active", "tensor_active", "dram_active", "memory_used_bytes", "temperature_c", "sm_clock_mhz",
)  # fmt: skip
TOGETHER = ("power_w", "energy_per_unit_j", "mfu", "mfu_estimated")

Edges = tuple[int, int]


class Sources(NamedTuple):
    """What tells of a run: its own rows and which names of them count, those of it and its GPUs together ("": none), and those of
    all of its GPUs (none where one of them is not recorded)."""

    run: str
    names: tuple[str, ...]
    derived: str
    gpus: Sequence[str]


def ends(first: int, last: int, changes: Sequence[CommandRecord]) -> tuple[Edges | None, Edges | None]:
    """Of a run with rows from `first` to `last`: the last minute before anybody changed it, and the last minute after all changes.

    Without changes the first and the last minute, or third. None where nothing lies there.
    """
    longest = round(LONGEST_S * SECOND)
    if not changes:
        longest = min(longest, (last - first) // PART)
        return ((first, first + longest), (last - longest, last)) if longest else (None, None)
    before = min(change.settled or change.t for change in changes) - 1
    after = max((c.settled or c.t) + round((c.took_s or 0.0) * SECOND) for c in changes) + 1
    return (
        (max(first, before - longest), before) if before > first else None,
        (max(after, last - longest), last) if after < last else None,
    )


def stretch(recording: Recording, sources: Sources, edges: Edges | None) -> Stretch | None:
    """The figures between two stamps, medians as a rule; None where fewer than `FEWEST` iterations ended there."""
    if edges is None:
        return None
    t0, t1 = edges
    steps, values = _values(recording, sources.run, sources.names, t0, t1)
    if len(values.get(ITERATION, ())) < FEWEST or not steps:
        return None
    figures = {name: _usual(name, values.get(name, ())) for name in sources.names}
    if sources.derived:
        _, together = _values(recording, sources.derived, TOGETHER, t0, t1)
        figures |= {f"derived/{name}": _median(together.get(name, ())) for name in TOGETHER}
    each = [_values(recording, gpu, OF_GPUS, t0, t1)[1] for gpu in sources.gpus]
    for name in OF_GPUS if each else ():
        medians = [_median(values.get(name, ())) for values in each]
        known = [value for value in medians if value is not None]
        figures[f"gpu/{name}"] = fmean(known) if len(known) == len(medians) else None
    return Stretch(t0, t1, (steps[0], steps[-1]), figures)


def _values(
    recording: Recording, source: str, names: tuple[str, ...], t0: int, t1: int
) -> tuple[list[int], dict[str, list[float]]]:
    """The iterations and the known values of each name between two stamps; means of groups where rows are gone."""
    if not names:
        return [], {}
    found: dict[str, list[float]] = {name: [] for name in names}
    steps: list[int] = []
    if t0 < (recording.thinned_before or t0):
        groups = recording.buckets(source, names, t0, t1, POINTS)
        steps += [step for step in array("q", groups.step) if step >= 0]
        for name, raw in zip(groups.names, groups.mean, strict=True):
            found[name] += [value for value in array("d", raw) if value == value]
        return steps, found
    for part in recording.rows(source, t0, t1, names):
        steps += [step for step in part.steps() if step >= 0]
        for name, raw in zip(part.names, part.values, strict=True):
            found[name] += [value for value in array("d", raw) if value == value]
    return steps, found


def _usual(name: str, values: Sequence[float]) -> float | None:
    """Of rates as `level` has it, and of the seconds of an iteration, which are rates as well: one that waits for data is no exception."""
    known = usable(values)
    if len(known) < len(values) or not known:
        return _median(values)
    if name.endswith("_per_s"):
        return level(known)
    return 1 / level([1 / value for value in known]) if name == ITERATION else _median(values)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
