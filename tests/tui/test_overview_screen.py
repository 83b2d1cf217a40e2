"""The overview: GPUs, host, runs; the way to a run and back; and names that lead nowhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.client.client import Link
from hoptui.domain.devices import GpuProcess
from hoptui.domain.facts import fact
from hoptui.protocol.messages import Event, Vital
from hoptui.tui.screens.gpu.screen import GpusScreen
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.widgets import Choices, Panel
from tests import factories
from tests.golden import Golden, sheet
from tests.tui.conftest import NO_DRIVER

SECOND = 1_000_000_000
MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]


def test_gpus_host_and_runs_at_a_glance(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=8).live().history()

    async def script(app: Any, pilot: Any) -> None:
        assert "gpu07" in read(app, "identity")
        assert "1 running" in read(app, "identity")
        assert read(app, "gpu-head").split() == [
            "busy",
            "%",
            "SM",
            "%",
            "tensor",
            "%",
            "DRAM",
            "%",
            "SM",
            "5",
            "min",
            "W",
            "GiB",
            "°C",
            "MHz",
            "clocks",
            "used",
            "by",
        ]
        gpus = read(app, "gpu-list").splitlines()
        assert len(gpus) == 8
        figures = re.findall(r"[\d./]+", gpus[0].replace("1 980", "1980"))
        assert figures == ["0", "92", "81", "34", "31", "633/700", "58.1/80.0", "64", "1980"]
        assert "power cap" in gpus[0]
        assert gpus[0].endswith("ppo-cartpole")
        assert "ppo-cartpole" not in gpus[1]
        assert app.screen.query_one("#gpus", Panel).title == "GPUs · 8 × NVIDIA H100 80GB HBM3"
        assert "42 %" in read(app, "host-lines")
        run = read(app, "run-list")
        for part in ("● live", "ppo-cartpole", "1 204 / 5 000", "502 k env steps/s", "4 m 0 s"):
            assert part in run
        assert "num_envs 1 024 → 2 048" in read(app, "event-lines")
        assert there.client.watched == [None]

    play(there.app(run=None), script)


def test_without_runs_it_says_what_to_do(scene: MakeScene, play: Play, read: Read, read_all: ReadAll) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert read(app, "gpu-list") == NO_DRIVER
        assert "hoptui demo" in read(app, "run-list")
        assert "hoptui.connect" in read(app, "run-list")
        await pilot.press("enter", "down", "end")
        assert isinstance(app.screen, OverviewScreen)

    play(scene(gpus=0, runs=False).live().app(run=None), script)


def test_enter_opens_a_run_and_g_comes_back(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert "ppo-cartpole" in read(app, "identity")
        await pilot.press("g")
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)
        assert "ppo-cartpole" in read(app, "run-list")
        assert there.client.watched == [None, "3f2a9c10", None]

    play(there.app(run=None), script)


def test_live_runs_stand_before_ended_ones(scene: MakeScene, play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()
    ended = msgspec.structs.replace(
        there.run,
        run="beef",
        name="older",
        exit_reason="exception",
        exit_detail="boom",
        started_wall=there.run.started_wall + 50,
    )
    there.node = msgspec.structs.replace(there.node, runs=(ended, there.run))
    there.tell(node=there.node, vitals={"beef": Vital(state="exited", step=12)})

    async def script(app: Any, pilot: Any) -> None:
        first, second = read(app, "run-list").splitlines()
        assert "ppo-cartpole" in first
        assert "✕ exited" in second
        assert f"{ended.exit_reason}: {ended.exit_detail}" in second
        await pilot.press("down", "enter")
        await pilot.pause()
        shown["progress"] = read(app, "progress")
        assert "p pause" not in read(app, "keys")

    play(there.app(run=None), script)
    golden(sheet(shown))


@pytest.mark.parametrize("width", [100, 120])
def test_nothing_of_a_run_is_cut_where_there_is_room(
    scene: MakeScene, play: Play, read: Read, width: int
) -> None:
    there = scene(gpus=1, total=1_000_000).live()
    ended = msgspec.structs.replace(
        there.run, run="beef", name="older", exit_reason="stopped", exit_detail="by root (pid 28673)"
    )
    there.node = msgspec.structs.replace(there.node, runs=(ended, there.run))
    vitals = {there.run.run: Vital(state="live", step=11_326), "beef": Vital(state="exited", step=12)}
    there.tell(node=there.node, vitals=vitals)

    async def script(app: Any, pilot: Any) -> None:
        live, over = read(app, "run-list").splitlines()
        for part in ("11 326 / 1 000 000", "4 m 0 s", "env steps/s"):
            assert part in live
        assert "12 / 1 000 000" in over
        assert over.endswith(f"stopped {ended.exit_detail}")
        assert "…" not in live + over

    play(there.app(run=None), script, (width, 30))


def test_an_unknown_name_opens_the_overview_and_says_so(scene: MakeScene, play: Play, golden: Golden) -> None:
    there = scene(gpus=1).live()
    told: list[str] = []

    async def script(app: Any, pilot: Any) -> None:
        assert isinstance(app.screen, OverviewScreen)
        told.extend(str(notice.message) for notice in app._notifications)

    play(there.app(run="nosuchrun"), script)
    golden(told)


def test_a_new_gpu_gets_its_line(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=2).live()
    full = there.node
    there.node = msgspec.structs.replace(full, gpus=full.gpus[:1])
    there.tell(node=there.node)

    async def script(app: Any, pilot: Any) -> None:
        assert len(read(app, "gpu-list").splitlines()) == 1
        there.tell(node=full)
        app.client.on_change("node")
        while len(read(app, "gpu-list").splitlines()) < 2:
            await pilot.pause()
            app.tick()
        assert app.screen.query_one("#gpus", Panel).title == "GPUs · 2 × NVIDIA H100 80GB HBM3"

    play(there.app(run=None), script)


def tenants(there: Any) -> None:
    """A process of the run on GPU 0, and one that cannot be looked into."""
    own = GpuProcess(
        gpu="GPU-0",
        pid=20711,
        memory_used_bytes=3 << 30,
        sm_percent=81.0,
        user="ana",
        command="python train.py",
        run="3f2a9c10",
    )
    there.tell(processes=(GpuProcess(gpu="GPU-1", pid=4711), own), processes_version=1)


def test_processes_say_whose_they_are_and_what_is_unknown(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=2).live()
    tenants(there)

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        shown["two GPUs"] = read(app, "process-list")

    play(there.app(run=None), script)
    golden(sheet(shown))


def test_a_gpu_that_does_not_tell_its_processes_has_a_line(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = (
        scene(gpus=2)
        .change_gpu(1, missing_because={"processes": fact("recorded", text="the driver refuses it")})
        .live()
    )
    there.tell(processes=(GpuProcess(gpu="GPU-0", pid=4711),), processes_version=1)

    async def script(app: Any, pilot: Any) -> None:
        shown["GPU 1 tells none"] = read(app, "process-list")

    play(there.app(run=None), script)
    golden(sheet(shown))


def test_more_processes_than_lines_are_counted(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()
    there.tell(processes=tuple(GpuProcess(gpu="GPU-0", pid=i, memory_used_bytes=i << 30) for i in range(40)))

    async def script(app: Any, pilot: Any) -> None:
        lines = read(app, "process-list").splitlines()
        assert lines[0].split()[:2] == ["0", "39"]
        assert app.screen.query_one("#processes", Panel).title == f"On the GPUs · 1–{len(lines)} of 40"

    play(there.app(run=None), script)


def test_a_lost_gpu_and_a_mig_instance_keep_their_places(scene: MakeScene, play: Play, read: Read) -> None:
    reason = "lost: fell off the bus"
    there = scene(gpus=2).change_gpu(1, problem=fact("recorded", text=reason))
    slice_ = factories.gpu(
        uuid="MIG-a1b2c3", name="NVIDIA H100 MIG 1g.10gb", parent="GPU-0", memory_total_bytes=10 << 30
    )
    there.node = msgspec.structs.replace(there.node, gpus=(*there.gpus, slice_))

    async def script(app: Any, pilot: Any) -> None:
        whole, part, lost = read(app, "gpu-list").splitlines()
        assert whole.split()[:2] == ["0", "H100"]
        assert part.split() == ["└", "1g.10gb", "a1b2", "–", "–", "–", "–", "–", "–", "–", "–"]
        assert lost.split()[0] == "1"
        assert lost.endswith(f"✕ {reason}")

    play(there.live().app(run=None), script)


def test_tab_goes_to_the_gpus_and_enter_opens_one(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=3).live()

    async def script(app: Any, pilot: Any) -> None:
        assert "›" not in read(app, "gpu-list")
        await pilot.press("shift+tab", "down", "down")
        await pilot.pause()
        assert read(app, "gpu-list").splitlines()[2].startswith("› 2")
        assert "›" not in read(app, "run-list")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, GpusScreen)
        assert app.screen.gpu_id == "GPU-2"
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)

    play(there.app(run=None), script)


def test_without_runs_the_keys_are_in_the_list_of_gpus(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, GpusScreen)

    play(scene(gpus=1, runs=False).live().app(run=None), script)


def test_charts_show_work_of_one_gpu_and_one_curve_a_gpu_of_several(scene: MakeScene, play: Play) -> None:
    for count, legend in (
        (1, "SM %   ━ tensor %   ━ DRAM %"),
        (2, "GPU 0   ━ GPU 1"),
        (8, "SM %   ━ tensor %   ━ DRAM %"),
    ):

        async def script(app: Any, pilot: Any, legend: str = legend) -> None:
            assert re.sub(r"\[.*?\]", "", str(app.screen.query_one("#work").border_subtitle)) == f"━ {legend}"

        play(scene(gpus=count).live().app(run=None), script)


def test_the_first_figures_stand_side_by_side_and_a_hidden_truth_is_marked(
    scene: MakeScene, play: Play
) -> None:
    there = scene(gpus=1).live().gpu(busy=100.0, sm_active=26.0)

    async def script(app: Any, pilot: Any) -> None:
        spans = app.screen.query_one("#gpu-list").lines[0]
        assert [(s.text, s.ink) for s in spans if s.text in ("100", "26")] == [("100", ""), ("26", "warn")]

    play(there.app(run=None), script)


def test_fast_sampling_is_a_key_and_the_header_tells_the_rate(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        assert "Hz" not in read(app, "identity")
        await pilot.press("f")
        there.tell(node=msgspec.structs.replace(there.node, hz=10.0))
        app.client.on_change("node")
        await pilot.pause()
        await pilot.pause()
        assert "10 Hz" in read(app, "identity")
        await pilot.press("f")
        assert there.client.asked_hz == [10.0, 0.0]

    play(there.app(run=None), script)


def test_without_gpus_there_is_nothing_to_sample_fast(scene: MakeScene, play: Play) -> None:
    there = scene().live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("f")
        assert there.client.asked_hz == []
        assert not any(binding.binding.id == "gpus.fast" for binding in app.screen.active_bindings.values())
        app._fast = True  # the GPUs are gone meanwhile: it can be ended
        await pilot.press("f")
        assert there.client.asked_hz == [0.0]

    play(there.app(run=None), script)


def test_an_event_of_a_gpu_names_it(scene: MakeScene, play: Play, read: Read) -> None:
    without_its_name, with_its_name = "fell off the bus (Xid 79)", "GPU 1 is back"
    there = scene(gpus=2).live()
    base = {
        "t": there.client.ns,
        "wall": 1_780_000_000.0,
        "kind": "xid",
        "source": "gpu/GPU-1",
        "level": "alarm",
    }
    there.tell(
        events=(
            Event(seq=1, text=without_its_name, **base),
            Event(seq=2, text=with_its_name, **base),
        )
    )

    async def script(app: Any, pilot: Any) -> None:
        shown = read(app, "event-lines")
        assert f"✕ GPU 1  {without_its_name}" in shown
        assert f"✕ {with_its_name}" in shown

    play(there.app(run=None), script)


def test_without_the_daemon_no_run_is_called_live_and_no_time_goes_on(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene().live()

    async def script(app: Any, pilot: Any) -> None:
        there.client.ns += 30 * SECOND
        there.client.link = Link("lost", 120.0, "the daemon is gone", answered=110.0)
        app.tick()
        await pilot.pause()
        run = read(app, "run-list")
        assert "– unknown" in run
        assert "live" not in run
        assert "4 m 10 s" in run, "as long as it was heard of"

    play(there.app(run=None), script)


def test_the_cursor_stays_on_its_run_and_its_process_when_others_come_before_them(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()
    mine, other = (GpuProcess(gpu="GPU-0", pid=pid, user="ana", command="sleep") for pid in (50, 7))
    there.tell(processes=(mine,), processes_version=1)

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        newer = msgspec.structs.replace(
            there.run, run="ffff", name="newer", started_wall=there.run.started_wall + 60
        )
        there.node = msgspec.structs.replace(there.node, runs=(there.run, newer))
        there.tell(node=there.node, vitals={"ffff": there.vital})
        there.tell(processes=(other, mine), processes_version=2)
        there.client.ns += 2 * SECOND
        app.tick()
        await pilot.pause()
        assert app.screen.query_one("#run-list", Choices).index == 1
        assert "› ● live  ppo-cartpole" in read(app, "run-list")
        await pilot.press("shift+tab")
        await pilot.pause()
        shown = read(app, "process-list").splitlines()
        assert shown[1].startswith("› 0   50 ")

    play(there.app(run=None), script)
