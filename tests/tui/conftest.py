"""A fake client with the real store, a clock that stands still, and a node to look at."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Unpack

import msgspec
import pytest
from textual.pilot import Pilot

from hoptui.client.client import Change, Link
from hoptui.client.conversation import NO_LIMITS, Details, ReadOnlyError, TuneOp
from hoptui.domain.columns import Columns, pack
from hoptui.domain.facts import fact
from hoptui.domain.line_counts import CountedLine, FoundLines, LineCounts
from hoptui.domain.tuning import Limits
from hoptui.model.store import Store
from hoptui.protocol.messages import (
    Command,
    CommandRecord,
    Delta,
    Stage,
    Verb,
    Vital,
)
from hoptui.settings import Config
from hoptui.tui.app import HoptuiApp
from hoptui.tui.styled_text import Line, lay
from hoptui.tui.widgets import Lines
from screenshots.made_up_job import states
from tests import factories
from tests.model.recorded_run import ID, write
from tests.tui.fast_pilot import no_naps, style_sheets_parsed_once
from tests.tui.replay_player import Player

__all__ = ["no_naps", "style_sheets_parsed_once"]

SECOND = 1_000_000_000
START = 1_000 * SECOND
WALL = 1_780_000_000.0  # of the stamp START
RUN = "3f2a9c10"
ANA = factories.ANA

KNOBS = (
    factories.knob(
        "num_envs", 2048, default=1024, min=1, max=65536, scale="log", effect="learning", cost="shape",
        description="environments stepped side by side", version=1, by="ana (pid 4121)",
    ),
    factories.knob("rollout_len", 64, min=8, max=1024, scale="pow2", cost="shape"),
    factories.knob(
        "grad_accum", 4, min=1, max=64, effect="speed", keeps="minibatch_size",
        description="micro-batches whose gradients make one minibatch's", version=3,
    ),
    factories.knob("lr", 3e-4, min=1e-6, max=0.1, scale="log"),
    factories.knob("clip_range", 0.2, min=0.01, max=1.0),
    factories.knob("entropy_coef", 0.01, min=0.0, max=1.0),
    factories.knob("precision", "bf16", choices=("fp32", "bf16"), effect="speed", cost="rebuild"),
)  # fmt: skip
GPU = factories.gpu(
    driver="580.159.04",
    architecture="Hopper",
    limits={
        "power_default_w": 700.0,
        "power_min_w": 200.0,
        "power_max_w": 700.0,
        "margin_slowdown_c": -2.0,
        "margin_shutdown_c": -8.0,
        "margin_max_c": 0.0,
        "memory_margin_max_c": 0.0,
    },
)
NO_DRIVER = "no NVIDIA driver: libnvidia-ml.so.1 was not found"


def line(kind: str, number: int, function: str, inside: str = "", file: str = "ppo.py") -> CountedLine:
    """A line of the script of the run."""
    return CountedLine(kind, f"/home/ana/ppo/{file}", number, function, inside, 0)


LINES: Mapping[CountedLine, int] = {
    line("environment", 88, "rollout", "step", "cartpole_env.py"): 212,
    line("compute", 41, "act", "F.linear", "policy.py"): 121,
    line("compute", 133, "update", "run_backward"): 118,
    line("wait", 140, "update", "item"): 74,
    line("script", 96, "rollout"): 31,
    line("compute", 136, "update", "_foreach_add_"): 22,
    line("log", 160, "main", "print"): 11,
    line("save", 171, "save_checkpoint", "save"): 6,
}
"""The samples of a minute of the run."""


@cache
def recent(ns: int, seconds: int, gpus: tuple[tuple[str, int, bool], ...]) -> tuple[Columns, ...]:
    """Rows of the last `seconds` of the run, the host, and GPUs: their id, number, and whether they have GPM
    counters."""
    sources: dict[str, list[tuple[int, int, dict[str, float]]]] = {}
    for i in range(seconds):
        t = ns - (seconds - i) * SECOND + SECOND // 2
        x = i / seconds
        speed = (480e3 + 30e3 * (x > 0.55)) * (1 + 0.02 * math.sin(i / 3))
        pace = 65536 / speed
        run = {
            "env_steps_per_s": speed,
            "iteration_s": pace,
            "episode_return": 500 * (1 - math.exp(-4 * x)) * (1 + 0.04 * math.sin(i * 1.7)),
            "policy_loss": -0.012 + 0.004 * math.sin(i),
            "value_loss": 18 * math.exp(-3 * x) + 0.2,
            "entropy": 0.69 - 0.3 * x,
            "approx_kl": 0.004 + 0.001 * math.cos(i),
            "phase/rollout": 0.61 * pace,
            "phase/rollout/env": 0.38 * pace,
            "phase/rollout/policy": 0.22 * pace,
            "phase/update": 0.33 * pace,
        }
        step = 1204 - (seconds - i) // 2
        sources.setdefault(f"run/{RUN}", []).append((t, step, run))
        host = {
            "cpu_percent": 34 + 8 * math.sin(i / 9), "memory_used_bytes": float(58 << 30),
            "memory_total_bytes": float(128 << 30), "load_1m": 12.1, "disk_read_bytes_per_s": 0.0,
            "disk_written_bytes_per_s": 1.3e6, "net_received_bytes_per_s": 42e3, "net_sent_bytes_per_s": 9e3,
        }  # fmt: skip
        sources.setdefault("host", []).append((t, -1, host))
        process = {"cpu_percent": 190 + 30 * math.cos(i / 7), "memory_rss_bytes": 3.2 * (1 << 30)}
        sources.setdefault(f"process/{RUN}", []).append((t, -1, process))
        for uuid, index, gpm in gpus:
            gpu_row = {
                "busy": 92 - 7 * index + 5 * math.sin(i / 4), "memory_busy": 31 + 4 * math.cos(i / 5),
                "power_w": 612 - 30 * index + 25 * math.sin(i / 6), "memory_used_bytes": 58.1 * (1 << 30),
                "memory_total_bytes": float(80 << 30), "temperature_c": 64.0 + index,
                "memory_temperature_c": 71.0, "sm_clock_mhz": 1980.0, "throttle": 4.0 if index == 0 else 0.0,
                "power_violation_s": 4210.0 + 0.34 * i, "thermal_violation_s": 0.0,
                "temperature_margin_c": 22.0 - index, "bar1_used_bytes": float(7 << 20),
                "protected_memory_used_bytes": 0.0, "encoder_busy": 0.0, "decoder_busy": 0.0,
                "jpeg_busy": 0.0, "ofa_busy": 0.0,
            }  # fmt: skip
            if gpm:
                gpu_row |= {
                    "sm_active": 81.0 - index,
                    "sm_occupancy": 35.4,
                    "tensor_active": 34.0,
                    "dram_active": 31.0,
                    "fp32_active": 8.3,
                    "mfu_estimated": 34.9,
                    "pcie_rx_bytes_per_s": 18.9e6,
                    "window_s": 0.5,
                }
            sources.setdefault(f"gpu/{uuid}", []).append((t, -1, gpu_row))
    return tuple(pack(source, rows) for source, rows in sources.items())


class FakeClient:
    """Records what the dashboard asks for; its store is the real one on a clock that tests move."""

    def __init__(self) -> None:
        self.ns = START
        self.store = Store(lambda: self.ns)
        self.link = Link("connecting", 0.0)
        self.on_change: Callable[[Change], None] = lambda change: None
        self.sent: list[Command] = []
        self.watched: list[str | None] = []
        self.renewed: list[str] = []  # runs whose pause was
        self.noted: list[tuple[str, str]] = []
        self.tuned: list[tuple[str, TuneOp, str, Limits]] = []
        self.asked_hz: list[float] = []
        self.asked_every_s = 0.0
        self.described: list[str] = []
        self.lines_asked: list[tuple[str, bool, bool]] = []
        self.output_asked: list[tuple[str, int]] = []
        self.started = self.closed = self.read_only = False

    def start(self) -> None:
        self.started = True

    def close(self) -> None:
        self.closed = True

    def watch(self, run: str | None) -> None:
        self.watched.append(run)

    def send(self, verb: Verb, run_id: str, **details: Unpack[Details]) -> str:
        self._must_steer()
        command = Command(id=f"c{len(self.sent)}", run=run_id, epoch=1, verb=verb, origin=ANA, **details)
        self.sent.append(command)
        self.store.sent(command)
        return command.id

    def renew_pause(self, run_id: str) -> None:
        self._must_steer()
        self.renewed.append(run_id)

    def tune(self, run_id: str, op: TuneOp, *, knob: str = "", limits: Limits = NO_LIMITS) -> None:
        self._must_steer()
        self.tuned.append((run_id, op, knob, limits))

    def add_note(self, run_id: str, text: str) -> None:
        self._must_steer()
        self.noted.append((run_id, text))

    def sample(self, hz: float) -> None:
        self._must_steer()
        self.asked_hz.append(hz)

    def describe(self, run_id: str) -> None:
        self.described.append(run_id)

    def fetch_lines(self, run_id: str, *, every_rank: bool = False, whole: bool = False) -> None:
        self.lines_asked.append((run_id, every_rank, whole))

    def fetch_output(self, run_id: str, rank: int) -> None:
        self.output_asked.append((run_id, rank))

    def pace(self, seconds: float) -> None:
        self.asked_every_s = seconds

    def _must_steer(self) -> None:
        if self.read_only:
            raise ReadOnlyError


class Scene:
    """A node, what happens on it, and the client that tells of it."""

    def __init__(self, *, gpus: int = 0, runs: bool = True, total: int | None = 5000) -> None:
        self.client = FakeClient()
        self.version = 0
        self.gpus = tuple(msgspec.structs.replace(GPU, uuid=f"GPU-{i}", index=i) for i in range(gpus))
        self.run = factories.run(
            RUN,
            "ppo-cartpole",
            pid=20711,
            started_wall=WALL - 240.0,
            total=total,
            knobs=KNOBS,
            units={"env_steps_per_s": "env steps/s"},
            gpus=tuple(gpu.uuid for gpu in self.gpus[:1]),
        )
        self.vital = Vital(state="live", step=1204, iteration_s=1.82, progress_age_s=1.0, last_t=START)
        self.node = factories.node(
            *((self.run,) if runs else ()),
            started_wall=WALL - 9000,
            wall_offset_ns=int(WALL * SECOND) - START,
            cpus=16,
            memory_total_bytes=128 << 30,
            gpus=self.gpus,
            gpu_problem=None
            if gpus
            else fact("driver.not_found", nvml=12, error="NVML Shared Library Not Found"),
        )

    def tell(self, **delta: Any) -> None:
        """Apply a Delta of these fields."""
        self.version += 1
        self.client.store.apply(Delta(id=1, now=self.client.ns, state=self.version, **delta))

    def live(self, *, history: bool = True) -> Scene:
        """Connect: the node, the vital and four minutes of rows."""
        self.client.link = Link("live", 0.0)
        self.tell(node=self.node, vitals={RUN: self.vital} if self.node.runs else {})
        if history:
            self.rows(240)
            self.sampled(LINES)
        return self

    def sampled(self, *ranks: Mapping[CountedLine, int], whole: bool = False, seconds: int = 60) -> Scene:
        """The stack samples of ranks from 0 on, as counts of lines, over the last `seconds`."""
        found = {rank: self.counts(lines, seconds) for rank, lines in enumerate(ranks) if lines}
        self.client.store.apply_lines(RUN, FoundLines(found), whole=whole)
        return self

    def counts(self, lines: Mapping[CountedLine, int], seconds: int = 60) -> LineCounts:
        """The samples of a process."""
        kinds: Counter[str] = Counter()
        for line, samples in lines.items():
            kinds[line.kind] += samples
        return LineCounts(
            began=self.client.ns - seconds * SECOND,
            ended=self.client.ns,
            samples=kinds.total(),
            kinds=dict(kinds.most_common()),
            lines=tuple(
                msgspec.structs.replace(line, samples=samples)
                for line, samples in sorted(lines.items(), key=lambda item: -item[1])
            ),
        )

    def update(self, *, vital: dict[str, Any] | None = None, run: dict[str, Any] | None = None) -> None:
        """Change fields of the run or its vital."""
        self.run = msgspec.structs.replace(self.run, **(run or {}))
        self.vital = msgspec.structs.replace(self.vital, **(vital or {}))
        self.node = msgspec.structs.replace(self.node, runs=(self.run,))
        self.tell(node=self.node, vitals={RUN: self.vital})

    def rows(self, seconds: int) -> None:
        """Rows of all sources for the last `seconds`."""
        gpus = tuple((gpu.uuid, gpu.index, "gpm" not in gpu.missing_because) for gpu in self.gpus)
        self.tell(columns=recent(self.client.ns, seconds, gpus))

    def gpu(self, index: int = 0, **readings: float) -> Scene:
        """One newer row of a GPU: only these readings."""
        self.tell(columns=(pack(f"gpu/{self.gpus[index].uuid}", [(self.client.ns, -1, readings)]),))
        return self

    def derived(self, **readings: float) -> Scene:
        """A row of what the run and its GPUs say together."""
        self.tell(columns=(pack(f"derived/{RUN}", [(self.client.ns, -1, readings)]),))
        return self

    def change_gpu(self, index: int, **fields: Any) -> Scene:
        """Change facts of a GPU."""
        changed = msgspec.structs.replace(self.gpus[index], **fields)
        self.gpus = tuple(changed if i == index else gpu for i, gpu in enumerate(self.gpus))
        self.node = msgspec.structs.replace(self.node, gpus=self.gpus)
        return self

    def record(self, **fields: Any) -> CommandRecord:
        """A command of the run, told to the store."""
        ago = float(fields.pop("ago_s", 100.0))
        if "id" in fields:
            fields["command_id"] = fields.pop("id")
        stage: Stage = fields.pop("stage", "applied")
        t = self.client.ns - int(ago * SECOND)
        settled = t if stage not in ("sent", "accepted", "scheduled") else 0
        given: dict[str, Any] = {"command_id": f"r{ago}", "run_id": RUN, "origin": ANA, **fields}
        record = factories.record(**given, stage=stage, t=t, wall=WALL - ago, settled=settled)
        self.tell(commands=(record,))
        return record

    def job(
        self, nodes: int, ranks: int, seconds: int = 150, *, first: int = 0, faults: bool = True
    ) -> Scene:
        """The run is one of so many nodes and ranks; its states from the `first` second on."""
        self.update(run={"world": nodes * ranks})
        now = self.client.ns
        for t, state in states(nodes, ranks, seconds, first=first, run=RUN, faults=faults):
            self.client.ns = now - round((seconds - 1 - t) * SECOND)
            self.client.store.apply_job(RUN, state)
        self.client.ns = now
        return self

    def history(self) -> Scene:
        """Two applied changes and a checkpoint, as after some minutes of work."""
        self.tell(
            events=(
                factories.event(
                    1, "run.started", "ppo-cartpole began", t=START - 230 * SECOND, wall=WALL - 230, run=RUN
                ),
                factories.event(
                    2,
                    "note",
                    "checkpoint written: step-1190.pt",
                    t=START - 20 * SECOND,
                    wall=WALL - 20,
                    run=RUN,
                    step=1190,
                ),
            )
        )
        self.record(
            id="a",
            ago_s=180.0,
            knob="lr",
            before=1e-3,
            wanted=3e-4,
            effective=3e-4,
            version=1,
            step=1090,
            measured=factories.measured(0.001, 0.018, detectable=False),
        )
        self.record(
            id="b",
            ago_s=105.0,
            knob="num_envs",
            before=1024,
            wanted=2048,
            effective=2048,
            version=1,
            step=1140,
            measured=factories.measured(0.061, 0.012),
        )
        return self

    def app(self, run: str | None = "ppo-cartpole", **options: Any) -> HoptuiApp:
        """An app on this scene that draws nothing by itself."""

        def connect(on_change: Callable[[Change], None]) -> FakeClient:
            self.client.on_change = on_change
            return self.client

        config = Config.of(theme=options.pop("theme", "dark"), ascii=options.pop("plain", False))
        options = {"config": config, "frames": False, **options}
        return HoptuiApp(connect, run, clock=lambda: (self.client.ns - START) / SECOND + 100.0, **options)


Play = Callable[[HoptuiApp, Pilot[None]], Awaitable[None]]


def play(app: HoptuiApp, script: Play, size: tuple[int, int] = (120, 40)) -> None:
    """Run an app headless at a size, tell it what its client knows, and follow a script."""

    async def main() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            app.client.on_change("node")  # type: ignore[attr-defined]
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(main())


def read(app: HoptuiApp, name: str) -> str:
    """What a widget of the screen on top shows."""
    return app.screen.query_one(f"#{name}", Lines).text


def read_all(app: HoptuiApp) -> str:
    """What all widgets of the screen on top show."""
    return "\n".join(w.text for w in app.screen.query(Lines) if w.display and w.size.height)


def rendered(lines: Iterable[Line], width: int) -> list[str]:
    """What lines look like at a width, without the blanks at their ends."""
    return ["".join(piece for piece, _ in lay(line, width)).rstrip() for line in lines]


@pytest.fixture(name="read")
def read_fixture() -> Callable[[HoptuiApp, str], str]:
    return read


@pytest.fixture(name="read_all")
def read_all_fixture() -> Callable[[HoptuiApp], str]:
    return read_all


@pytest.fixture
def scene() -> Callable[..., Scene]:
    return Scene


@pytest.fixture(name="play")
def play_fixture() -> Callable[..., None]:
    return play


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of a run of ten minutes."""
    return write(tmp_path_factory.mktemp("recorded") / f"{ID}.hoptui")


@pytest.fixture
def player(recorded: Path) -> Player:
    """The dashboard on that recording."""
    return Player(recorded)


@pytest.fixture(autouse=True)
def in_utc() -> Iterator[None]:
    """Times of day are those of UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()
