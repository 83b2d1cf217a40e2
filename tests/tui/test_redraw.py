"""What a dashboard costs where nothing trains and where nobody looks: how often its clock beats, and how much
it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.pacing import REST_S, TICK_S
from hoptui.tui.app import HoptuiApp
from tests.tui.replay_player import Player

MakeScene = Callable[..., Any]
Play = Callable[..., None]
SECOND = 1_000_000_000
EXITED = {"vital": {"state": "exited"}, "run": {"exit_reason": "finished"}}


def settled(there: Any, app: HoptuiApp) -> None:
    """Let some seconds pass, in which all other screens are imported."""
    for _ in range(40):
        there.client.ns += int(TICK_S * SECOND)
        app.tick()


def test_it_is_calm_where_no_run_lives_and_nobody_asks_for_more(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        settled(there, app)
        assert not app.calm
        there.update(**EXITED)
        assert app.calm
        await pilot.press("f")
        assert not app.calm
        await pilot.press("f")
        assert app.calm

    play(there.app(run=None), script)


def test_it_is_not_calm_before_the_other_screens_are_imported(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()
    there.update(**EXITED)

    async def script(app: Any, pilot: Any) -> None:
        assert not app.calm
        settled(there, app)
        assert app.calm

    play(there.app(), script)


def test_a_run_that_begins_ends_the_rest_at_once(
    scene: MakeScene, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = scene(gpus=1).live()
    there.update(**EXITED)
    set_timer = HoptuiApp.set_timer
    rests: list[float] = []

    def noted(app: HoptuiApp, delay: float, callback: Callable[[], None]) -> Any:
        rests.append(delay)
        return set_timer(app, delay, callback)

    monkeypatch.setattr(HoptuiApp, "set_timer", noted)

    async def script(app: Any, pilot: Any) -> None:
        settled(there, app)
        there.client.ns -= there.client.ns % SECOND  # a second begins, and the clock of the test stands still
        app.client.on_change("vitals")
        await pilot.pause()
        assert rests[-1] == pytest.approx(REST_S)
        there.update(vital={"state": "live"}, run={"exit_reason": ""})
        app.client.on_change("vitals")
        await pilot.pause()
        assert rests[-1] <= TICK_S

    play(there.app(frames=True), script)


def test_less_is_asked_for_while_the_terminal_takes_nothing(
    scene: MakeScene, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = scene(gpus=1).live()
    waiting = 30
    monkeypatch.setattr(HoptuiApp, "waiting", property(lambda app: waiting))

    async def script(app: Any, pilot: Any) -> None:
        nonlocal waiting
        settled(there, app)
        assert there.client.asked_every_s == REST_S
        waiting = 0
        settled(there, app)
        assert there.client.asked_every_s == 0.0

    play(there.app(), script)


def test_a_replay_stands_ready_to_play(player: Player) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert not app.calm

    player.play(script)


def test_the_clock_may_beat_once_more_as_the_app_ends(
    scene: MakeScene, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        with monkeypatch.context() as ending:
            ending.setattr(HoptuiApp, "screen_stack", property(lambda _: []))
            there.client.ns += SECOND
            there.update(vital={"step": 5})
            app.tick()

    play(there.app(), script)
