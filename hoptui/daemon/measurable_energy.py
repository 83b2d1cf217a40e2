"""Whether the energy of a run can be measured on this node. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.facts import Fact, fact


def obstacle(node: Node, run: TrackedRun) -> Fact | None:
    """Return why the energy of a run cannot be measured. None if it can, or if its GPUs are not known yet."""
    if not run.state.gpus:
        known = run.said if node.gpus else not node.sampler_problems
        return fact("tune.no_gpu", run=run.state.name) if known else None
    gpus = [gpu for gpu in node.gpus if gpu.uuid in run.state.gpus]
    used = len(run.state.gpus)
    if used < run.state.world:
        return fact("tune.fewer_gpus", run=run.state.name, ranks=run.state.world, gpus=used)
    found = (_of_gpu(gpu) or _of_others(gpu, node.processes, run) for gpu in gpus)
    return next(filter(None, found), None)


def _of_gpu(gpu: GpuInfo) -> Fact | None:
    if gpu.parent:
        return fact("tune.energy_of_instance", gpu=gpu.index)
    missing = gpu.missing_because.get("energy") or gpu.missing_because.get("power_w")
    return fact("tune.no_energy_counter", gpu=gpu.index, why=missing) if missing is not None else None


def _of_others(gpu: GpuInfo, processes: Sequence[GpuProcess], run: TrackedRun) -> Fact | None:
    """Return the process of another user or run that works on a GPU.

    One that holds memory alone draws no power for its work. In a container, processes may belong to no known
    run. Then as many as the run has ranks may be its own.
    """
    there = [process for process in processes if process.gpu == gpu.uuid]
    unknown = [process for process in there if not process.run]
    told_apart = any(process.run == run.id for process in there) or len(unknown) > run.state.world
    others = [p for p in there if p.run not in ("", run.id)] + (unknown if told_apart else [])
    shares_known = any(process.sm_percent for process in there)
    busy = next((process for process in others if process.sm_percent or not shares_known), None)
    return fact("tune.gpu_shared", gpu=gpu.index, pid=busy.pid) if busy is not None else None
