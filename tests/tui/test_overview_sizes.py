"""The overview in every size: which list has how many lines, and that the keys stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.client.client import Link
from hoptui.domain.devices import GpuProcess
from hoptui.tui.widgets import Panel

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]


def test_eight_gpus_leave_room_for_several_runs_in_a_small_terminal(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=8).live()
    there.tell(processes=(GpuProcess(gpu="GPU-0", pid=1), GpuProcess(gpu="GPU-1", pid=2)))
    more = [msgspec.structs.replace(there.run, run=f"beef{i}", name=f"run{i}") for i in range(2)]
    there.tell(node=msgspec.structs.replace(there.node, runs=(there.run, *more)))

    async def script(app: Any, pilot: Any) -> None:
        async def rows() -> list[int]:
            for _ in range(2):  # the heights, and then what is in them
                app.client.on_change("node")
                await pilot.pause()
            return [len(read(app, name).splitlines()) for name in ("gpu-list", "process-list", "run-list")]

        assert await rows() == [8, 1, 3]
        there.client.link = Link("lost", 88.0, "the daemon (pid 77) does not answer")
        assert await rows() == [8, 1, 2], "what is wrong needs a line"

    play(there.app(run=None), script, (80, 24))


def test_lists_have_the_lines_that_they_need_and_the_keys_stay(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=2).live().history()
    there.tell(processes=tuple(GpuProcess(gpu="GPU-0", pid=i) for i in range(4)))
    more = [msgspec.structs.replace(there.run, run=f"beef{i}", name=f"run{i}") for i in range(9)]

    async def script(app: Any, pilot: Any) -> None:
        async def shown(width: int, height: int) -> tuple[int, int, int]:
            await pilot.resize_terminal(width, height)
            for _ in range(2):  # the heights, and then what is in them
                app.client.on_change("node")
                await pilot.pause()
            keys = app.screen.query_one("#keys").region
            assert (keys.y, keys.height) == (height - 1, 1), "the keys are the last line"
            lists = ("run-list", "process-list", "event-lines")
            return tuple(len(read(app, name).splitlines()) for name in lists)  # type: ignore[return-value]

        assert await shown(100, 30) == (1, 4, 4)
        assert await shown(80, 24) == (1, 4, 3)
        there.tell(node=msgspec.structs.replace(there.node, runs=(there.run, *more)))
        assert await shown(100, 29) == (9, 2, 2)
        assert app.screen.query_one("#runs", Panel).title == "Runs · 1–9 of 10"
        assert await shown(120, 50) == (10, 4, 4)
        assert app.screen.query_one("#runs", Panel).title == "Runs · 10"
        await shown(80, 16)
        await shown(120, 32)

    play(there.app(run=None), script)


@pytest.mark.parametrize("first", [(120, 40), (30, 8)])
@pytest.mark.parametrize("gpus", [0, 8])
def test_every_size_is_drawn(
    scene: MakeScene, play: Play, read_all: ReadAll, first: tuple[int, int], gpus: int
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        for size in (first, (80, 24), (58, 14), (200, 50)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert "gpu07" in read_all(app), size
            assert not app.screen.show_vertical_scrollbar, size

    play(scene(gpus=gpus).live().history().app(run=None), script, first)
