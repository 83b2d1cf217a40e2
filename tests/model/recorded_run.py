"""A recording of ten minutes of a run, made anew for each test that wants one: rows, events, commands, a
GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hoptui.domain.columns import Columns, pack
from hoptui.domain.facts import fact
from hoptui.domain.tuning import Measured
from hoptui.protocol.messages import CommandRecord, Event, Origin
from hoptui.recording import Recording, stored_json
from hoptui.recording.ingest import Boot
from hoptui.recording.library import NODE, RUN, KnownRun, encode_node
from tests import factories

SECOND = 1_000_000_000
FIRST = 1_000 * SECOND
WALL = 1_780_000_000.0  # of the stamp FIRST
LENGTH_S = 600
ID = "rec01"
ANA = Origin(kind="person", user="ana", pid=4121)
BOOT = Boot("boot-1", int(WALL) * SECOND - FIRST, FIRST)
PAUSED = (450, 480)  # seconds in which the run stood still
KNOBS = (
    factories.knob("lr", 3e-4, default=1e-3, scale="log", version=1, by="ana (pid 4121)"),
    factories.knob("grad_accum", 8, default=4, min=1, max=64, effect="speed", version=2),
    factories.knob("epochs", 10),
)
STATE = factories.run(
    ID, "ppo-recorded", pid=77, started_wall=WALL, total=1000, knobs=KNOBS,
    units={"env_steps_per_s": "env steps/s"}, can=("set", "pause", "stop"),
    gpus=("GPU-0",), exit_reason="finished", exited_wall=WALL + LENGTH_S,
)  # fmt: skip
GPU = factories.gpu(sm_clock_max_mhz=None, problem=fact("recorded", text="it fell off the bus"))
NODE_STATE = factories.node(
    pid=5, started_wall=0.0, wall_offset_ns=1, cpus=16, memory_total_bytes=128 << 30, gpus=(GPU,), viewers=3,
    hz=10.0,
)  # fmt: skip


def at(seconds: float) -> int:
    """The stamp of so many seconds after the first."""
    return FIRST + round(seconds * SECOND)


def run_rows(seconds: int = LENGTH_S) -> Columns:
    """An iteration a second, stamped in its middle; an evaluation in every sixtieth; none while it is
    paused."""
    rows: list[tuple[int, int, dict[str, float]]] = []
    for i in range(seconds):
        if PAUSED[0] < i < PAUSED[1]:
            continue
        row = {
            "env_steps_per_s": 1000.0 + i, "iteration_s": 1.0 + 0.001 * (i % 7),
            "episode_return": math.sqrt(i), "phase/rollout": 0.6, "phase/update": 0.3,
        }  # fmt: skip
        row |= {"evaluation_return": float(i)} if i % 60 == 0 else {}
        row |= {"warm_up": 1.0} if i < 50 else {}
        rows.append((at(i + 0.5), i, row))
    return pack(f"run/{ID}", rows)


def gpu_rows(seconds: int = LENGTH_S) -> Columns:
    """Ten readings a second."""
    rows = [
        (at(i / 10), -1, {"busy": 50 + 40 * math.sin(i / 37), "power_w": 300.0 + i % 100})
        for i in range(10 * seconds)
    ]
    return pack("gpu/GPU-0", rows)


def event(seconds: float, kind: str, text: str, **fields: Any) -> Event:
    t, wall = at(seconds), WALL + seconds
    return factories.event(int(seconds * 10) + 1, kind, text, t=t, wall=wall, run=ID, **fields)


def command(name: str, asked: float, settled: float = 0.0, **fields: Any) -> CommandRecord:
    given: dict[str, Any] = {"stage": "applied", "origin": ANA, "seq": int(asked), **fields}
    given["settled"] = at(settled) if settled else 0
    return factories.record(name, ID, t=at(asked), wall=WALL + asked, **given)


EVENTS = (
    event(0, "started", "started (pid 77)"),
    event(100, "note", "checkpoint written", step=100),
    event(200.3, "note", "learning rate is high", level="warning"),
    event(LENGTH_S, "exited", "finished", step=599),
)
COMMANDS = (
    command(
        "lr", 200, 202, knob="lr", wanted=3e-4, before=1e-3, effective=3e-4, version=1, step=202,
        measured=Measured(metric="env_steps_per_s", gain=0.05, interval=0.01, iterations=15, detectable=True,
                          settled=True),
    ),
    command("ga", 300, 310, knob="grad_accum", wanted=8, before=4, effective=8, version=2, step=310),
    command("no", 400, 400, knob="epochs", wanted=99, before=10, stage="rejected", reason="out of bounds"),
    command("p", 449, 450.6, verb="pause", step=450),
    command("r", 479, 480, verb="resume", step=450),
)  # fmt: skip


def write(path: Path, **fields: Any) -> Path:
    """Write the recording; `state`, `events`, `commands`, `node` (None: not remembered), `rows` and
    `details` may differ."""
    state, node = fields.get("state", STATE), fields.get("node", NODE_STATE)
    host = [
        (at(i), -1, {"cpu_percent": float(i % 100), "memory_used_bytes": 2.0**30}) for i in range(LENGTH_S)
    ]
    with Recording.create(path, boot=BOOT) as recording:
        recording.remember(
            RUN,
            stored_json.encode(
                KnownRun(state=state, nonce="n", process_started=1, details=fields.get("details"))
            ),
        )
        if node is not None:
            recording.remember(NODE, encode_node(node))
        for rows in fields.get("rows", (run_rows(), gpu_rows(), pack("host", host))):
            recording.append(rows)
        for one in fields.get("events", EVENTS):
            recording.event(one)
        for record in fields.get("commands", COMMANDS):
            recording.command(record)
    return path
