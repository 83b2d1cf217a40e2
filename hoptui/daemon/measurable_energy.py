"""Whether the energy of a run can be measured on this node. No I/O."""

from __future__ import annotations

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.other_processes import working_on
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.devices import GpuInfo
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
    found = (_of_gpu(gpu) or _of_others(gpu, node, run) for gpu in gpus)
    return next(filter(None, found), None)


def _of_gpu(gpu: GpuInfo) -> Fact | None:
    if gpu.parent:
        return fact("tune.energy_of_instance", gpu=gpu.index)
    missing = gpu.missing_because.get("energy") or gpu.missing_because.get("power_w")
    return fact("tune.no_energy_counter", gpu=gpu.index, why=missing) if missing is not None else None


def _of_others(gpu: GpuInfo, node: Node, run: TrackedRun) -> Fact | None:
    busy = working_on(gpu.uuid, node.processes, run.id, run.state.world)
    return fact("tune.gpu_shared", gpu=gpu.index, pid=busy.pid) if busy is not None else None
