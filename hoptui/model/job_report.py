"""The report of a run from the recordings of its nodes: that of the base, and what is known of all nodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hoptui.model.job_course import job_course
from hoptui.model.recorded.clock_offsets import ClockOffset, clock_note
from hoptui.model.recorded.joined import JoinedStore
from hoptui.model.recorded.node_recordings import NodeRecording
from hoptui.model.recorded.store import RecordedStore
from hoptui.model.report import EnergyUse, NodeReport, Report, energy_use, read
from hoptui.model.report_curves import FEWEST_POINTS, MetricCurve, read_curves
from hoptui.recording import Recording, RecordingError, library

BASE_POINTS, NODE_POINTS = 9_000, 7_000
"""Buckets of all curves of the first node, and of all other nodes."""
LEAST_POINTS = 24
MOST_NODES = 8
"""Other nodes that have charts of their GPUs."""
MOST_GPUS = 8
OF_GPU = ("sm_active", "busy", "power_w", "memory_used_bytes", "sm_clock_mhz")


def by_run(recordings: Sequence[Recording]) -> list[list[Recording]]:
    """Return the recordings of each run together, in their order.

    Two recordings of one node, such as copies of different times, stay apart: they are compared.

    Raises:
        RecordingError: one of them cannot be read, or has no run.
    """
    found: list[tuple[str, list[int], list[Recording]]] = []
    for recording in recordings:
        known = library.known_run(recording)
        if known is None:
            raise RecordingError(library.without_run(recording.path))
        run, rank = known.state.run, known.state.rank
        place = next((one for one in found if one[0] == run and rank not in one[1]), None)
        if place is None:
            found.append((run, [rank], [recording]))
        else:
            place[1].append(rank)
            place[2].append(recording)
    return [group for _, _, group in found]


def read_run(recordings: Sequence[Recording]) -> Report:
    """Return the report of a run from open recordings of one or several of its nodes.

    Raises:
        JoinError: they are not of one run, or two of them are of one node.
        RecordingError: one of them cannot be read, has no run, or is empty.
    """
    if len(recordings) == 1:
        report = read(recordings[0])
        if report.state.world < 2:
            return report
        store = RecordedStore(recordings[0])
        store.seek(store.span[1])
        parts, span = [NodeRecording(recordings[0], store, ClockOffset(0, 0, 0))], store.span
        return dataclasses.replace(report, job=job_course(parts, span, report.events))
    joined = JoinedStore(recordings)
    joined.seek(joined.span[1])
    base, *others = joined.parts
    report = read(base.recording, BASE_POINTS)
    nodes = tuple(_node(base, part, at, len(others)) for at, part in enumerate(others))
    return dataclasses.replace(
        report,
        job=job_course(joined.parts, joined.span, report.events),
        nodes=nodes,
        energy=_together(report, nodes),
    )


def _node(base: NodeRecording, part: NodeRecording, at: int, count: int) -> NodeReport:
    node, state, source = part.store.node, part.state, f"derived/{part.state.run}"
    wall_ns = part.offset.offset_ns + part.recording.wall_offset_ns - base.recording.wall_offset_ns
    return NodeReport(
        host=part.name,
        file=part.recording.path.name,
        ranks=tuple(part.ranks),
        gpus=tuple(gpu for gpu in node.gpus if gpu.uuid in state.gpus) if node is not None else (),
        curves=_curves(part, min(count, MOST_NODES)) if at < MOST_NODES else (),
        energy=energy_use(part.recording, state, None, part.store.pages.sources.get(source)),
        clock=clock_note(part.name, base.name, part.offset, wall_ns),
    )


def _curves(part: NodeRecording, nodes: int) -> tuple[MetricCurve, ...]:
    """The curves of the GPUs of a node, by the clock of the base."""
    uuids = part.state.gpus[:MOST_GPUS]
    points = NODE_POINTS // max(1, nodes * len(uuids) * (len(OF_GPU) - 1))
    points = min(FEWEST_POINTS, max(LEAST_POINTS, points))
    found: list[MetricCurve] = []
    for uuid in uuids:
        source = f"gpu/{uuid}"
        there = part.recording.names(source) if source in part.store.pages.sources else ()
        unneeded = "busy" if "sm_active" in there else ""
        names = [name for name in OF_GPU if name in there and name != unneeded]
        found += read_curves(part.recording, part.store, source, names, points)
    offset = part.offset.offset_ns
    return tuple(curve._replace(t=[t - offset for t in curve.t]) for curve in found)


def _together(report: Report, nodes: Sequence[NodeReport]) -> EnergyUse:
    """The energy of all nodes; unknown if that of one node is."""
    each = [report.energy, *(node.energy for node in nodes)]
    joules = _sum([one.joules for one in each])
    idle = _sum([_product(one.joules, one.idle) for one in each])
    return EnergyUse(
        joules,
        _sum([one.watts for one in each]),
        idle / joules if idle is not None and joules else None,
        _per_unit(report, nodes, joules),
    )


def _per_unit(report: Report, nodes: Sequence[NodeReport], joules: float | None) -> float | None:
    """The energy of a unit of work, if the recordings have as many GPUs as the run has ranks."""
    gpus = len(report.gpus) + sum(len(node.gpus) for node in nodes)
    if report.work is None or not joules or gpus < report.state.world:
        return None
    return joules / report.work


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _product(one: float | None, other: float | None) -> float | None:
    return one * other if one is not None and other is not None else None
