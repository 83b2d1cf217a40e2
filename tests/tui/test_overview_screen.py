"""The overview: GPUs, host, runs; the way to a run and back; and names that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.screens.run import RunScreen
from hoptui.tui.widgets.panel import Panel
from hoptui.wire.messages import Vital

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]


def test_gpus_host_and_runs_at_a_glance(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=8).live().history()

    async def script(app: Any, pilot: Any) -> None:
        assert "gpu07" in read(app, "identity")
        assert "1 running" in read(app, "identity")
        gpus = read(app, "gpu-lines").splitlines()
        assert len(gpus) == 8
        assert gpus[0].startswith("0  H100 80GB HBM3")
        assert "633/700 W" in gpus[0]
        assert gpus[0].endswith("⚠ power cap")
        assert "ppo-cartpole" in gpus[0]
        assert "ppo-cartpole" not in gpus[1]
        assert "42 %" in read(app, "host-lines")
        run = read(app, "run-list")
        for part in ("● live", "ppo-cartpole", "1 204 / 5 000", "502 k env steps/s", "4 m 0 s"):
            assert part in run
        assert "num_envs 1 024 → 2 048" in read(app, "event-lines")
        assert there.client.watched == [None]

    play(there.app(run=None), script)


def test_without_runs_it_says_what_to_do(scene: MakeScene, play: Play, read: Read, read_all: ReadAll) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert read(app, "gpu-lines") == "no NVIDIA driver: libnvidia-ml.so.1 was not found"
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


def test_live_runs_stand_before_ended_ones(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()
    ended = msgspec.structs.replace(
        there.run, run="beef", name="older", exit_reason="exception", exit_detail="boom", started_wall=there.run.started_wall + 50
    )  # fmt: skip
    there.node = msgspec.structs.replace(there.node, runs=(ended, there.run))
    there.tell(node=there.node, vitals={"beef": Vital(state="exited", step=12)})

    async def script(app: Any, pilot: Any) -> None:
        first, second = read(app, "run-list").splitlines()
        assert "ppo-cartpole" in first
        assert "✕ exited" in second
        assert "exception: boom" in second
        await pilot.press("down", "enter")
        await pilot.pause()
        assert "✕ exited: exception: boom, last iteration 12" in read(app, "progress")
        assert "p pause" not in read(app, "keys")

    play(there.app(run=None), script)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (58, 14), (200, 50), (30, 8)])
@pytest.mark.parametrize("gpus", [0, 8])
def test_every_size_mounts(
    scene: MakeScene, play: Play, read_all: ReadAll, size: tuple[int, int], gpus: int
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert "gpu07" in read_all(app)
        assert not app.screen.show_vertical_scrollbar

    play(scene(gpus=gpus).live().history().app(run=None), script, size)


def test_an_unknown_name_opens_the_overview_and_says_so(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()
    told: list[str] = []

    async def script(app: Any, pilot: Any) -> None:
        assert isinstance(app.screen, OverviewScreen)
        told.extend(str(notice.message) for notice in app._notifications)

    play(there.app(run="nosuchrun"), script)
    assert told == ["no run 'nosuchrun' on this node; there is ppo-cartpole"]


def test_a_new_gpu_gets_its_line(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=2).live()
    full = there.node
    there.node = msgspec.structs.replace(full, gpus=full.gpus[:1])
    there.tell(node=there.node)

    async def script(app: Any, pilot: Any) -> None:
        assert len(read(app, "gpu-lines").splitlines()) == 1
        there.tell(node=full)
        app.client.on_change("node")
        await pilot.pause()
        await pilot.pause()
        app.tick()
        assert len(read(app, "gpu-lines").splitlines()) == 2
        assert app.screen.query_one("#gpus", Panel).title == "GPUs · 2"

    play(there.app(run=None), script)
