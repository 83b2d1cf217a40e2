"""Keys, clicks and sizes at random: nothing falls, and nothing is sent that the last gesture did not plainly
mean."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from textual.events import Resize
from textual.geometry import Size

from benchmarks import monkey
from benchmarks.monkey import Gesture, Seen, Sent, UnmeantError
from hoptui.domain.devices import GpuProcess
from hoptui.domain.tuning import Limits
from hoptui.tui import dialogs
from hoptui.tui.dialogs import Confirm, Finder
from hoptui.tui.screens.knob_editor.screen import KnobEditor, StagedBox
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.screens.tuner.screen import LimitsBox, TunerScreen
from hoptui.tui.widgets import KeyBar
from tests.tui.tuned_run import DIAGNOSIS, STATE

MakeScene = Callable[..., Any]
Play = Callable[..., None]
SECOND = 1_000_000_000
SEED, GESTURES = 1, 40


def pressed(*keys: str) -> Iterator[Gesture]:
    return (Gesture("key", (key,)) for key in keys)


def test_a_box_may_be_gone_before_it_is_filled(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=2).live().history()

    async def script(app: Any, pilot: Any) -> None:
        boxes: list[Callable[[], object]] = [
            app.action_help,
            app.action_settings,
            app.action_history,
            app.action_charts,
            partial(app.edit_knob, there.run.run, "lr"),
            app.action_tuner,
            lambda: app.push_screen(StagedBox(there.run.run)),
            lambda: app.push_screen(LimitsBox(there.run.run, Limits())),
            lambda: app.push_screen(Finder("Find", (), nothing="nothing is there")),
            partial(dialogs.to_stop, app, there.run.run),
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


def as_long_as(gestures: int) -> Callable[[], bool]:
    """So many gestures, and no more."""
    left = itertools.count(gestures, -1)
    return lambda: next(left) > 0


@pytest.mark.parametrize(("seed", "read_only", "size"), [(SEED, False, (80, 24)), (SEED, True, (120, 40))])
def test_random_gestures(
    scene: MakeScene,
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    read_only: bool,
    size: tuple[int, int],
) -> None:
    there = scene(gpus=2).live().history()
    there.tell(processes=(GpuProcess(gpu="GPU-0", pid=1, user="root", command="init"),), processes_version=1)
    there.update(run={"tuner": STATE, "diagnosis": DIAGNOSIS})
    there.client.read_only = read_only
    chosen = random.Random(seed)
    signals: list[object] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *sent: signals.append(sent))
    watch = monkey.Watch()
    watch.over(there.client)
    made = 0

    async def script(app: Any, pilot: Any) -> None:
        def go_on() -> bool:
            nonlocal made
            made += 1
            there.client.ns += SECOND // 3
            if chosen.random() < 0.2:
                there.rows(1)
            app.tick()
            return made <= GESTURES

        hand = itertools.chain(pressed("p"), monkey.gestures(chosen))
        await monkey.play(app, pilot, watch, hand, go_on)

    app = there.app()
    play(app, script, size=size)
    assert made > GESTURES or app.return_code == 0, "it fell"
    assert not signals
    assert all(c.verb != "set" or c.expect_version is not None for c in there.client.sent)
    if read_only:
        assert not there.client.sent
        assert not there.client.renewed
        assert not there.client.tuned
        assert not there.client.asked_hz
    else:
        assert there.client.sent, "these gestures do mean something"


@pytest.mark.parametrize("first", [None, "ppo-cartpole"])
def test_a_double_click_beside_the_palette_closes_it_alone(
    scene: MakeScene, play: Play, first: str | None
) -> None:
    there = scene().live()

    async def script(app: Any, pilot: Any) -> None:
        below = app.screen
        await pilot.press("ctrl+p")
        assert app.screen is not below
        await monkey.make(app, pilot, Gesture("double", at=(300, 999)))
        assert app.screen is below

    play(there.app(first), script)


def test_a_double_click_on_back_goes_back_once(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=2).live().history()

    async def script(app: Any, pilot: Any) -> None:
        below = app.screen
        await pilot.press("h")
        bar = app.screen.query_one(KeyBar)
        at = next(x for x in range(bar.size.width) if bar.action_at(x) == "back")
        share = (-(-at * 1000 // app.size.width) + 5, 999)
        await monkey.make(app, pilot, Gesture("double", at=share))
        assert app.screen is below

    play(there.app(), script)


def test_the_watch_sees_what_nobody_meant(scene: MakeScene, play: Play) -> None:
    """What is asked for by no gesture, by another one, or of another knob: the monkey itself can fail."""
    there = scene(gpus=2).live().history()
    watch = monkey.Watch()
    watch.over(there.client)

    async def script(app: Any, pilot: Any) -> None:
        app.screen.action_freeze = lambda: app.client.send(
            "stop", there.run.run
        )  # a key that does another thing
        with pytest.raises(UnmeantError, match=r"'stop'.*freeze"):
            await monkey.play(app, pilot, watch, pressed("space"), as_long_as(1))

    play(there.app(), script)


def test_what_a_gesture_means(scene: MakeScene, play: Play) -> None:
    there = scene().live().history()

    async def script(app: Any, pilot: Any) -> None:
        run, box = app.screen, KnobEditor(there.run.run, there.run.knobs[2], 1)
        tuner, limits = TunerScreen(there.run.run), LimitsBox(there.run.run, Limits())
        asked = Confirm("Set", "Set lr 1 → 2?", "")
        good = [
            (Sent("pause"), Seen(run, "pause", {})),
            (Sent("pause.renew"), Seen(run, "", {})),
            (Sent("set", "lr", 2.0, "undo of a"), Seen(run, "undo", {})),
            (Sent("set", "lr", 2.0), Seen(asked, "yes", {}, asked.question)),
            (Sent("set", "grad_accum", 8), Seen(box, "send", {"grad_accum": 8})),
            (Sent("set", "lr", 2.0, "advised: it is launch-bound"), Seen(tuner, "advice", {})),
            (Sent("tune.freeze", "lr"), Seen(tuner, "freeze", {})),
            (Sent("tune.start"), Seen(limits, "start", {})),
        ]
        bad = [
            (Sent("pause"), Seen(run, "freeze", {})),
            (Sent("pause"), Seen(box, "pause", {})),
            (Sent("stop"), Seen(run, "stop", {})),
            (Sent("stop"), Seen(asked, "yes", {}, asked.question)),
            (Sent("set", "lr", 2.0), Seen(run, "undo", {})),
            (Sent("set", "lr", 2.0), Seen(asked, "no", {}, asked.question)),
            (Sent("set", "grad_accum", 16), Seen(box, "send", {"grad_accum": 8})),
            (Sent("set", "lr", 8), Seen(box, "send", {"grad_accum": 8})),
            (Sent("set", "lr", 2.0, "undo of a"), Seen(tuner, "advice", {})),
            (Sent("tune.start"), Seen(tuner, "start", {})),
            (Sent("tune.stop"), Seen(run, "stop", {})),
            (Sent("tune.stop"), Seen(asked, "yes", {}, asked.question)),
        ]
        assert [pair for pair in good if not monkey.meant(*pair)] == []
        assert [pair for pair in bad if monkey.meant(*pair)] == []

    play(there.app(), script)
