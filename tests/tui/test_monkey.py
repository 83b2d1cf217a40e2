"""Keys at random: nothing falls, and nothing is sent that the last key did not plainly mean."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.events import Resize
from textual.geometry import Size

from hoptui.tui import asking
from hoptui.tui.actions import ACTIONS
from hoptui.tui.screens.confirm import Confirm
from hoptui.tui.screens.finder import Finder
from hoptui.tui.screens.run import RunScreen
from hoptui.tui.screens.staged import StagedBox
from hoptui.wire.devices import GpuProcess

MakeScene = Callable[..., Any]
Play = Callable[..., None]
SECOND = 1_000_000_000
LEAVES = {"q", "ctrl+c", "ctrl+q"}
KEYS = [
    *sorted({key for a in ACTIONS for key in a.keys.split(",")} - LEAVES),
    "1",
    "8",
    "backspace",
    "ctrl+z",
]
STEERING = ["p", "c", "u", "e", "s", "a", "up", "8", "enter", "enter", "y", "n", "escape", "escape", "escape"]
SEED = 1
PLAIN = {"pause": "run.pause", "resume": "run.pause", "checkpoint": "run.checkpoint"}
"""What is sent at once, by one key on the run's screen."""


def meant(verb: str, key: str, screen: Any) -> bool:
    """Whether a command is what this key means on this screen."""
    if isinstance(screen, CommandPalette):
        return key == "enter" and verb != "stop"
    if verb == "stop":
        return key == "y" and isinstance(screen, Confirm) and screen.question.startswith("Stop ")
    if verb in PLAIN and isinstance(screen, RunScreen):
        return key in next(a.keys for a in ACTIONS if a.id == PLAIN[verb]).split(",")
    return verb == "set" and (key == "enter" or (key == "y" and isinstance(screen, Confirm)))


def test_a_box_may_be_gone_before_it_is_filled(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=2).live().history()

    async def script(app: Any, pilot: Any) -> None:
        boxes: list[Callable[[], object]] = [
            app.action_help,
            app.action_settings,
            app.action_history,
            app.action_charts,
            partial(app.edit_knob, there.run.run, "lr"),
            lambda: app.push_screen(StagedBox(there.run.run)),
            lambda: app.push_screen(Finder("Find", (), nothing="nothing is there")),
            partial(asking.to_stop, app, there.run.run),
        ]
        for wide, box in itertools.product((80, 81), boxes):
            box()
            while app.is_running and not app.screen.is_mounted:
                await asyncio.sleep(0)
            app.post_message(Resize(Size(wide, 24), Size(wide, 24)))
            app.screen.dismiss(None)
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)

    play(there.app(), script, (80, 24))


@pytest.mark.parametrize(("seed", "read_only", "size"), [(SEED, False, (80, 24)), (SEED, True, (120, 40))])
def test_random_keys(
    scene: MakeScene,
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    read_only: bool,
    size: tuple[int, int],
) -> None:
    there = scene(gpus=2).live().history()
    there.tell(processes=(GpuProcess(gpu="GPU-0", pid=1, user="root", command="init"),), processes_version=1)
    there.client.read_only = read_only
    chosen = random.Random(seed)
    signals: list[object] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *sent: signals.append(sent))

    async def script(app: Any, pilot: Any) -> None:
        for step in range(36):
            key = chosen.choice(chosen.choice((KEYS, STEERING))) if step else "p"
            screen, before = app.screen, len(there.client.sent)
            await pilot.press(key)
            for command in there.client.sent[before:]:
                assert meant(command.verb, key, screen), (command.verb, key, screen)
                assert command.verb != "set" or command.expect_version is not None
            there.client.ns += SECOND // 3
            if chosen.random() < 0.2:
                there.rows(1)
            app.tick()
        assert app.is_running

    app = there.app()
    play(app, script, size=size)
    assert app.return_code == 0 or app.return_code is None
    assert not signals
    assert read_only or there.client.sent, "these keys do mean something"
    if read_only:
        assert not there.client.sent
        assert not there.client.leases
        assert not there.client.asked_hz
