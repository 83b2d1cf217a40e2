"""Samples of what a daemon, a run and a recording have: each with sound values, and any field may be another.

A function takes fields by keyword, as the type has them. An unknown field is a TypeError.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from hoptui.domain.details import Repository, RunDetails
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobSpec, KnobState, KnobValue, kind_of
from hoptui.domain.tuning import Measured
from hoptui.protocol.messages import CommandRecord, Event, NodeState, Origin, RunState

SECOND = 1_000_000_000
RUN = "abcd2345"
ANA = Origin(kind="person", user="ana", pid=4121, client="dashboard")
STEERABLE = ("set", "pause", "resume", "stop", "checkpoint")

_OF_THE_STATE = frozenset(KnobState.__struct_fields__) - {"spec", "value"}


def knob(name: str, value: KnobValue, **fields: Any) -> KnobState:
    """A knob with this value in effect and by default; its kind is that of the value.

    `fields` are those of the state and of its declaration.
    """
    state = {key: fields.pop(key) for key in _OF_THE_STATE & fields.keys()}
    spec = structs.replace(KnobSpec(name=name, kind=kind_of(value), default=value), **fields)
    return structs.replace(KnobState(spec=spec, value=value), **state)


def run(run_id: str = RUN, name: str = "ppo", **fields: Any) -> RunState:
    """A live run with three knobs."""
    sample = RunState(
        run=run_id,
        name=name,
        epoch=1,
        pid=4121,
        started_wall=1_000_000.0,
        total=5000,
        knobs=(
            knob("grad_accum", 4, min=1, max=64, effect="speed"),
            knob("lr", 3e-4, min=1e-6, max=0.1, scale="log"),
            knob("precision", "bf16", choices=("bf16", "fp32"), cost="rebuild"),
        ),
        headline="env_steps_per_s",
        units={"env_steps_per_s": "steps/s"},
        can=STEERABLE,
    )
    return structs.replace(sample, **fields)


def details(**fields: Any) -> RunDetails:
    """What a run is, as its process and the daemon find it."""
    sample = RunDetails(
        config={
            "env": "CartPole-v1", "lr": 3e-4, "optimizer.betas": [0.9, 0.95], "compile": True,
            "api_key": "***",
        },
        summary={"best_return": 487.5, "diverged": float("nan")},
        tags=("baseline", "a100"),
        notes="a longer warmup",
        command="python train.py --seed 1 --api-key '***'",
        directory="/home/ana/ppo",
        script="/home/ana/ppo/train.py",
        python="3.12.1",
        packages={"hoptui": "0.2.0", "torch": "2.13.0", "CUDA": "13.0", "numpy": "2.4.0"},
        host="gpu07",
        user="ana",
        environment={"RANK": "0", "WORLD_SIZE": "2"},
        repository=Repository(commit="3f9c2a1b7d", branch="main", dirty=True),
    )  # fmt: skip
    return structs.replace(sample, **fields)


NO_DRIVER = Fact("recorded", {"text": "no driver"})


def node(*runs: RunState, **fields: Any) -> NodeState:
    """A node with these runs and no GPU."""
    sample = NodeState(
        host="gpu07",
        pid=77,
        version="0.1.0",
        started_wall=1_000_000.0,
        wall_offset_ns=1_000_000 * SECOND,
        runs=runs,
        gpu_problem=None if fields.get("gpus") else NO_DRIVER,
    )
    return structs.replace(sample, **fields)


def gpu(index: int = 0, **fields: Any) -> GpuInfo:
    """An H100 as a sampler reports it."""
    sample = GpuInfo(
        uuid=f"GPU-{index}",
        index=index,
        name="NVIDIA H100 80GB HBM3",
        memory_total_bytes=80 << 30,
        power_limit_w=700.0,
        sm_clock_max_mhz=1980.0,
    )
    return structs.replace(sample, **fields)


def record(command_id: str = "c1", run_id: str = RUN, **fields: Any) -> CommandRecord:
    """A command that was sent, without an author: `set` unless `verb` is another."""
    sample = CommandRecord(id=command_id, run=run_id, epoch=1, verb="set")
    return structs.replace(sample, **fields)


def change(command_id: str = "c1", run_id: str = RUN, **fields: Any) -> CommandRecord:
    """A change of grad_accum by a person, which was applied."""
    sample = record(
        command_id,
        run_id,
        knob="grad_accum",
        before=4,
        wanted=8,
        effective=8,
        version=1,
        stage="applied",
        step=1205,
        origin=ANA,
        wall=1_000_000.0,
        seq=1,
    )
    return structs.replace(sample, **fields)


def measured(gain: float, interval: float, **fields: Any) -> Measured:
    """An effect on the throughput that was detected after 15 iterations."""
    sample = Measured(
        metric="env_steps_per_s", gain=gain, interval=interval, detectable=True, iterations=15, settled=True
    )
    return structs.replace(sample, **fields)


def event(seq: int = 1, kind: str = "note", text: str = "", **fields: Any) -> Event:
    """An event at the stamp `seq`."""
    return structs.replace(Event(seq=seq, t=seq, wall=0.0, kind=kind, text=text), **fields)
