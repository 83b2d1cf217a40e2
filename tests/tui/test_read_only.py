"""A dashboard that only looks: it says so, offers no key that would send something, and takes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.devices import GpuProcess
from hoptui.tui.screens.run.screen import RunScreen

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
RUN = "3f2a9c10"


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
@pytest.mark.guarantee("read-only")
def test_a_run_is_shown_and_no_key_steers_it(
    scene: MakeScene, play: Play, read: Read, size: tuple[int, int]
) -> None:
    there = scene(gpus=1).live().history()
    there.client.read_only = True
    there.update(vital={"state": "paused"})

    async def script(app: Any, pilot: Any) -> None:
        assert "read-only" in read(app, "identity")
        assert "go on)" not in read(app, "progress"), "p does not"
        keys = read(app, "keys")
        assert "history" in keys
        for word in ("edit", "undo", "pause", "go on", "checkpoint", "stop"):
            assert word not in keys
        await pilot.press("e", "u", "p", "c", "s", "f", "enter")
        assert isinstance(app.screen, RunScreen)
        assert not app.screen.query_one("#knobs").border_subtitle

    play(there.app(), script, size)
    assert (there.client.sent, there.client.renewed, there.client.asked_hz) == ([], [], [])


def test_the_overview_offers_to_end_nothing(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()
    there.client.read_only = True
    one = GpuProcess(gpu="GPU-0", pid=20711, user="ana", command="python train.py")
    there.tell(processes=(one,), processes_version=1)

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        assert "read-only" in read(app, "identity")
        await pilot.press("shift+tab")
        await pilot.pause()
        assert app.focused.id == "process-list"
        assert "end process" not in read(app, "keys")

    play(there.app(run=None), script)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_every_screen_says_so(scene: MakeScene, play: Play, read: Read, size: tuple[int, int]) -> None:
    there = scene(gpus=1).live().history()
    there.client.read_only = True
    there.client.link = there.client.link._replace(node="gpu07", round_trip_ms=24.2, answered=100.0)

    async def script(app: Any, pilot: Any) -> None:
        for opens in (app.action_tuner, app.action_history, app.action_settings, pilot.app.screen.action_gpus,
                      lambda: app.open_charts(RUN, find=False), app.open_overview):  # fmt: skip
            before = app.screen
            opens()
            await pilot.pause()
            app.tick()
            await pilot.pause()
            assert app.screen is not before
            said = read(app, "identity")
            assert "read-only" in said, said
            assert "ssh 24 ms" in said, said
            if app.screen.id != "overview":
                await pilot.press("escape")
                await pilot.pause()

    play(there.app(), script, size)
