"""What the screens of a node and of several look like: overview, GPUs, processes, history, hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hoptui.client.client import Change, Link
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.facts import fact
from hoptui.domain.tuning import Measured
from hoptui.protocol.messages import Origin, Vital
from hoptui.settings import Config
from hoptui.tui.hosts_app import FleetApp
from tests.tui.conftest import RUN, WALL, Scene
from tests.tui.recorded_runs import record

Snapshot = Callable[..., None]
GIB = 1 << 30


def tenants(there: Scene) -> Scene:
    """The run on GPU 0, somebody else on GPU 1, and one that cannot be looked into."""
    there.tell(
        processes=(
            GpuProcess(
                gpu="GPU-0",
                pid=20711,
                memory_used_bytes=58 * GIB,
                sm_percent=81.0,
                user="ana",
                command="python -m trainer ppo --num-envs 2048",
                run=RUN,
            ),
            GpuProcess(
                gpu="GPU-1",
                pid=30102,
                memory_used_bytes=12 * GIB,
                sm_percent=7.0,
                user="bo",
                command="python serve.py",
            ),
            GpuProcess(gpu="GPU-1", pid=4711),
        ),
        processes_version=1,
    )
    return there


def with_other_runs(there: Scene) -> Scene:
    """Also a run that waits and one that failed."""
    waits = msgspec.structs.replace(there.run, run="beef", name="lm-tinystories", gpus=("GPU-1",), total=None)
    failed = msgspec.structs.replace(
        there.run,
        run="dead",
        name="vit-cifar",
        gpus=(),
        exit_reason="exception",
        exit_detail="CUDA out of memory",
    )
    there.node = msgspec.structs.replace(there.node, runs=(there.run, waits, failed))
    vitals = {
        "beef": Vital(state="paused", step=310, paused_left_s=40.0),
        "dead": Vital(state="exited", step=12),
    }
    there.tell(node=there.node, vitals={RUN: there.vital, **vitals})
    return there


def test_overview_first_run(snapshot: Snapshot) -> None:
    """A GPU, and no run yet: how to begin."""
    snapshot(Scene(gpus=1, runs=False).live().app(run=None))


def test_overview_connecting(snapshot: Snapshot) -> None:
    """The first frame, before there is a word of the daemon."""
    snapshot(Scene(gpus=1).app(run=None))


def test_overview_no_daemon(snapshot: Snapshot) -> None:
    """The daemon cannot be started."""
    there = Scene()
    there.client.link = Link("failed", 0.0, "the daemon could not be started: /tmp/hoptui-1000 is full")
    snapshot(there.app(run=None))


def test_overview_several_runs(snapshot: Snapshot) -> None:
    """Eight GPUs with processes on them; a run that goes on, one that waits, one that failed."""
    snapshot(with_other_runs(tenants(Scene(gpus=8).live().history())).app(run=None))


def test_overview_no_gpu(snapshot: Snapshot) -> None:
    """A node without a GPU says why."""
    snapshot(Scene().live().history().app(run=None))


def test_overview_mig_and_lost(snapshot: Snapshot) -> None:
    """A GPU that fell off the bus and one that is cut into instances keep their lines."""
    there = Scene(gpus=2).change_gpu(1, problem=fact("recorded", text="lost: fell off the bus"))
    part = GpuInfo(
        uuid="MIG-a1b2c3",
        index=0,
        name="NVIDIA H100 MIG 1g.10gb",
        parent="GPU-0",
        memory_total_bytes=10 * GIB,
    )
    there.node = msgspec.structs.replace(there.node, gpus=(*there.gpus, part))
    snapshot(there.live().app(run=None))


def test_processes(snapshot: Snapshot) -> None:
    """The keys are in the list of processes, on one that may be ended."""
    snapshot(tenants(Scene(gpus=2).live()).app(run=None), "tab", "tab")


def test_gpu(snapshot: Snapshot) -> None:
    """Every reading of one of two GPUs, with its meaning."""
    facts: dict[str, Any] = {
        "memory_bandwidth_bytes_per_s": 3.35e12,
        "peak_flops": {"bf16": 989e12},
        "pcie_generation": 5,
        "pcie_width": 16,
        "nvlinks": 18,
    }
    there = tenants(Scene(gpus=2).change_gpu(0, **facts).live())
    there.derived(mfu=41.2, energy_per_unit_j=1.19e-3)
    there.update(run={"gpus": ("GPU-0", "GPU-1")})
    snapshot(there.app(), "d", "down")


def test_gpu_one_of_eight_lost(snapshot: Snapshot) -> None:
    """Tabs of eight GPUs; the chosen one cannot be read."""
    there = Scene(gpus=8).change_gpu(3, problem=fact("recorded", text="lost: fell off the bus")).live()
    snapshot(there.app(run=None), "d", "3")


def test_gpu_before_hopper(snapshot: Snapshot) -> None:
    """Readings that this GPU does not have, with the reason."""
    why = {"gpm": fact("gpm.needs_hopper", architecture="Ampere")}
    there = (
        Scene(gpus=1)
        .change_gpu(0, name="NVIDIA A100-SXM4-80GB", architecture="Ampere", missing_because=why)
        .live()
    )
    snapshot(there.app(), "d")


def test_gpu_that_waits(snapshot: Snapshot) -> None:
    """Busy, but the SMs wait: it is told; the small screen shows the chart."""
    there = Scene(gpus=1).live().gpu(busy=100.0, sm_active=26.0, power_w=300.0)
    snapshot(there.app(), "tab", "d")


def test_gpu_none(snapshot: Snapshot) -> None:
    """The readings of a GPU on a node without any."""
    snapshot(Scene(runs=False).live().app(run=None), lambda app: app.open_gpus("GPU-0"))


def commands(there: Scene) -> Scene:
    """A change that helped, its undo, a refusal of the tuner, a pause and a change that waits."""
    gain = Measured(
        metric="env_steps_per_s",
        before=480e3,
        after=509e3,
        gain=0.061,
        interval=0.012,
        detectable=True,
        iterations=15,
        settled=True,
    )
    there.record(
        id="a",
        ago_s=180.0,
        knob="num_envs",
        before=1024,
        wanted=2048,
        effective=2048,
        version=1,
        step=1090,
        measured=gain,
        why="more at once",
    )
    there.record(
        id="b",
        ago_s=120.0,
        knob="num_envs",
        before=2048,
        wanted=1024,
        effective=1024,
        version=2,
        step=1110,
        why="undo of a",
    )
    there.record(
        id="c",
        ago_s=60.0,
        knob="lr",
        before=3e-4,
        wanted=2.0,
        stage="rejected",
        reason="lr = 2 is out of bounds",
        origin=Origin(kind="tuner", user="ana"),
    )
    there.record(id="d", ago_s=30.0, verb="pause", step=1190)
    there.record(id="e", ago_s=1.0, knob="grad_accum", before=4, wanted=8, stage="scheduled", step=1205)
    return there


def test_history(snapshot: Snapshot) -> None:
    """Every command given to the run, with what it did."""
    snapshot(commands(Scene(gpus=1).live()).app(), "h", "down")


def test_history_of_nothing(snapshot: Snapshot) -> None:
    """No command has been given yet."""
    snapshot(Scene().live(history=False).app(), "h")


def test_history_filter(snapshot: Snapshot) -> None:
    """Only commands of which some words are said, while they are typed."""
    snapshot(commands(Scene(gpus=1).live()).app(), "h", "slash", *"num_envs")


def test_history_story(snapshot: Snapshot) -> None:
    """All that is known of one command."""
    snapshot(commands(Scene(gpus=1).live()).app(), "h", "end", "enter")


def fleet(scenes: Mapping[str, Scene], run: str | None = None) -> FleetApp:
    """A dashboard on these hosts, whose person's clock is the first one's."""

    def connector(there: Scene) -> Callable[[Callable[[Change], None]], Any]:
        return lambda on_change: there.client

    first = next(iter(scenes.values())).client
    app = FleetApp(
        {name: connector(there) for name, there in scenes.items()},
        run,
        config=Config.of(theme="dark"),
        frames=False,
        clock=lambda: first.ns / 1e9 - 900.0,
    )
    app.wall = lambda: WALL  # type: ignore[method-assign]
    return app


@pytest.fixture
def hosts() -> dict[str, Scene]:
    """One reached through ssh, one that is down, one that is not reached yet, and this one."""
    far, down, new, here = with_other_runs(Scene(gpus=8).live()), Scene(), Scene(), Scene().live()
    far.client.link = Link("live", 0.0, node="gpu07", round_trip_ms=24.2, answered=100.0)
    down.client.link = Link("lost", 88.0, "gpu08: No route to host", node="gpu08")
    return {"gpu07": far, "gpu08": down, "gpu09": new, "local": here}


def test_hosts(snapshot: Snapshot, hosts: dict[str, Scene]) -> None:
    """Four hosts with their links and runs; one cannot be reached."""
    snapshot(fleet(hosts))


def test_hosts_bar(snapshot: Snapshot, hosts: dict[str, Scene]) -> None:
    """The run of one of several hosts: the others are a line below."""
    snapshot(fleet(hosts, "ppo-cartpole"))


def several(folder: Path) -> None:
    """Recordings of five runs with different configurations."""
    for number, rate in enumerate((1e-3, 3e-4, 1e-4, 3e-3, 1e-2), 1):
        tags = ("baseline",) if number < 3 else ("sweep", "bf16")
        record(folder, number, config={"optimizer.lr": rate, "layers": 12, "batch": 32 * number}, tags=tags)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five recordings of this user."""
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir(mode=0o700)
    several(tmp_path / "state")


async def all_read(app: Any) -> None:
    """The recordings are on the screen."""
    async with asyncio.timeout(30):
        while len(app.screen.rows(app.screen.view())) < 6:
            app.tick()
            await asyncio.sleep(0.01)


def test_runs(snapshot: Snapshot, shelf: None) -> None:
    """The table of recorded and live runs."""
    snapshot(Scene(gpus=1).live().app(run=None), "t", all_read)


def test_runs_marked_sorted_and_grouped(snapshot: Snapshot, shelf: None) -> None:
    """Two marked runs, sorted by the learning rate and grouped by tags, without the live run."""
    snapshot(
        Scene(gpus=1).live().app(run=None), "t", all_read, "slash", *"lm lr>0.0001", "enter",
        "s", *"optimizer", "enter", "b", *"tag", "enter", "space", "space",
    )  # fmt: skip


def test_charts_of_recorded_runs(snapshot: Snapshot, shelf: None) -> None:
    """Two recorded runs in the charts, neither of which the node knows."""
    snapshot(Scene(gpus=1).live().app(run=None), "t", all_read, "end", "space", "up", "space", "c")
