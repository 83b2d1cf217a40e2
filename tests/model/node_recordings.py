"""Recordings of the nodes of one run, whose clocks are known to be apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.jobs import JobState
from hoptui.domain.stacks import StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.protocol.messages import Event, RankState, RunState
from hoptui.protocol.recorded_jobs import encode_recorded
from hoptui.recording import Recording, stack_minutes, stored_json
from hoptui.recording.ingest import Boot
from hoptui.recording.library import NODE, RUN, KnownRun, encode_node
from hoptui.recording.timed_states import JOB
from tests import factories
from tests.model.recorded_run import SECOND, WALL

ID = "job01"
FIRST = (1_000 * SECOND, 7_654 * SECOND)
"""The stamp at which each node begins: they have not booted together."""
AHEAD_S = 0.421
"""By how much the wall clock of the second node is ahead."""
JITTER_S = 0.003
"""By how much the ends of an iteration differ between the nodes."""
STEP_S, STEPS = 0.5, 400
WATTS = 400.0
LINE = StackFrame("/home/ana/train.py", "step", 12)
WAIT = StackFrame(
    "/opt/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", "all_reduce", 7
)


def of_node(node: int, run: str = ID) -> RunState:
    """The run on a node with two ranks."""
    lead = 2 * node
    return factories.run(
        run, "job", pid=100 + lead, started_wall=WALL, rank=lead, world=4,
        ranks=(RankState(rank=lead + 1, pid=101 + lead),),
    )  # fmt: skip


def write_node(
    path: Path,
    node: int,
    *,
    run: str = ID,
    steps: range = range(STEPS),
    state: JobState | None = None,
    gpus: bool = False,
    sampled: bool = True,
    events: Sequence[Event] = (),
) -> Path:
    """Write the recording of a node. Rank 3 needs longest, so that the others wait for it.

    `state` is that of the run on all nodes, recorded once a minute. With `gpus`, each rank has a GPU of
    `WATTS` and its rank. There are stack samples if it is `sampled`.
    """
    draw, first = random.Random(node), FIRST[node]
    found = of_node(node, run)
    infos = tuple(
        GpuInfo(uuid=f"GPU-{found.rank + local}", index=local, name="H100") for local in range(2 * gpus)
    )
    found = structs.replace(found, gpus=tuple(info.uuid for info in infos))
    with Recording.create(path, boot=boot(node)) as recording:
        known = KnownRun(state=found, nonce="n", process_started=1, details=None)
        recording.remember(RUN, stored_json.encode(known))
        recording.remember(NODE, encode_node(factories.node(host=f"gpu{node:02}", gpus=infos)))
        if gpus:
            write_gpus(recording, found)
        for rank, source in ((found.rank, f"run/{run}"), (found.rank + 1, f"rank/{run}/{found.rank + 1}")):
            rows = [
                (
                    first + round((STEP_S * (step + 1) + draw.uniform(-JITTER_S, JITTER_S)) * SECOND),
                    step,
                    {"iteration_s": STEP_S + 0.001 * rank},
                )
                for step in steps
            ]
            recording.append(pack(source, rows))
        for event in events:
            recording.event(event)
        for minute in range(1, 4):
            end = first + minute * 60 * SECOND
            samples = {
                rank: [
                    pack_stacks(
                        {(LINE,): 10 if rank < 3 else 95, (LINE, WAIT): 90 if rank < 3 else 5},
                        end - 60 * SECOND,
                        end,
                    )
                ]
                for rank in (found.rank, found.rank + 1)
            }
            if state is not None:
                recording.state(JOB, end, encode_recorded(state))
            if sampled:
                recording.stacks(end, stack_minutes.encode(samples, end), 200)
    return path


def write_gpus(recording: Recording, run: RunState) -> None:
    """Write a row a second of each GPU of a node, and of both together."""
    first, seconds = FIRST[run.rank // 2], range(1, round(STEP_S * STEPS))
    watts = [WATTS + run.rank + local for local in range(2)]
    for uuid, power in zip(run.gpus, watts, strict=True):
        row = {"power_w": power, "busy": 90.0, "sm_clock_mhz": 1980.0}
        recording.append(pack(f"gpu/{uuid}", [(first + second * SECOND, -1, row) for second in seconds]))
    both = {"power_w": sum(watts), "idle_power_w": 0.0, "mfu": 40.0 + run.rank}
    rows = [(first + second * SECOND, -1, both | {"energy_j": sum(watts) * second}) for second in seconds]
    recording.append(pack(f"derived/{run.run}", rows))


def boot(node: int) -> Boot:
    """The clocks of a node: the same moment has another stamp, and another wall time."""
    offset = int((WALL + AHEAD_S * node) * SECOND) - FIRST[node]
    return Boot(f"boot-{node}", offset, FIRST[node])
