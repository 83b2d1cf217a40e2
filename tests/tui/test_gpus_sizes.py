"""The GPUs screen in every size: what gives way, and that nothing is cut that matters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.facts import fact
from hoptui.presentation import sentences
from hoptui.presentation.gpu_readings import GPU
from hoptui.tui.components import host
from hoptui.tui.widgets import Panel
from tests.tui.test_gpus_screen import opened

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
OLD = fact("gpm.needs_hopper", architecture="Ampere")
NO_GPM = sentences.sentence(OLD)
ALL = (200, 60)
MEANING = " ".join(GPU["busy"].long.split()[:6])


@pytest.mark.parametrize("first", [(120, 40), (30, 8)])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_every_size_is_drawn_with_and_without_a_gpu(
    scene: MakeScene, play: Play, read_all: ReadAll, first: tuple[int, int], gpus: int
) -> None:
    there = scene(gpus=gpus).live()

    async def script(app: Any, pilot: Any) -> None:
        app.open_gpus("GPU-0")
        for size in (first, (80, 24), (58, 14), (200, 50), (100, 32)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert "gpu07" in read_all(app), size
            if size[0] > 50:
                assert ("busy" if gpus else "no NVIDIA driver") in read_all(app), size

    play(there.app(run=None), script, first)


def test_a_small_screen_has_meaning_chart_and_processes_behind_a_key(
    scene: MakeScene, play: Play, read_all: ReadAll
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        for part in (MEANING, "100┤", nobodys, MEANING):
            assert part in read_all(app)
            await pilot.press("tab")
            await pilot.pause()

    there = scene(gpus=1).live()
    nobodys = "".join(span.text for span in host.process_lines(there.app().view(None), 60, 3, "GPU-0")[0])
    assert "58.1 GiB" in nobodys
    play(there.app(run=None), script, (80, 24))


@pytest.mark.parametrize("gpus", [1, 8])
def test_in_little_room_some_readings_stay_beside_what_they_mean(
    scene: MakeScene, play: Play, read_all: ReadAll, gpus: int
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert app.screen.query_one("#reading-list").size.height >= 2
        assert MEANING in read_all(app)

    play(scene(gpus=gpus).live().app(run=None), script, (60, 16))


def test_a_list_that_goes_on_says_where_one_is_in_it(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        def part() -> tuple[int, ...]:
            title = app.screen.query_one("#readings", Panel).title
            return tuple(map(int, re.findall(r"\d+", title.rpartition(" · ")[2])))

        await opened(app, pilot)
        app.client.on_change("node")
        await pilot.pause()
        first, last, count = part()
        assert first == 1
        assert last == app.screen.query_one("#reading-list").size.height < count
        await pilot.press("end")
        await pilot.pause()
        assert part() == (count - last + 1, count, count)
        await pilot.resize_terminal(*ALL)
        await pilot.pause()
        assert app.screen.query_one("#readings", Panel).title == "GPU 0 · NVIDIA H100 80GB HBM3"

    play(there.app(run=None), script, (80, 24))


def test_a_reason_is_told_whole_at_every_size(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).change_gpu(0, missing_because={"gpm": OLD}).live()

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert NO_GPM in read(app, "reading-list").splitlines()[1]

    for size in ((120, 40), (80, 24)):
        play(there.app(run=None), script, size)
