"""Keys become commands, the editor shows their life, and nothing dangerous happens by accident."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from textual.command import CommandPalette
from textual.events import MouseDown, MouseUp
from textual.widgets import Input

from hoptui.client.client import Link
from hoptui.domain.knobs import KnobError, check_value
from hoptui.domain.tuning import Measured
from hoptui.presentation import vocabulary
from hoptui.protocol.messages import Delta
from hoptui.tui import actions
from hoptui.tui.app_protocol import EVERYTHING
from hoptui.tui.dialogs import Confirm, Help
from hoptui.tui.screen_base import LiveScreen
from hoptui.tui.screens.knob_editor.screen import KnobEditor
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.widgets import KeyBar, Lines
from tests.client import fake_daemon
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
SECOND = 1_000_000_000
EDIT_ACCUM = ("down", "down", "e")


async def told(app: Any, pilot: Any) -> None:
    app.client.on_change("commands")
    await pilot.pause()


def outcome(there: Any, **fields: Any) -> None:
    fake_daemon.settle(there.client.store, "c0", there.client.ns, **fields)


def test_the_editor_says_what_a_change_means(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*EDIT_ACCUM)
        shown["a change of speed, its value as it is"] = f"{read(app, 'about')}\n{read(app, 'verdict')}"
        await pilot.press("up")
        await pilot.pause()
        shown["one more"] = f"{read(app, 'about')}\n{read(app, 'verdict')}"
        await pilot.press("escape", "down", "enter")
        shown["a change of learning"] = read(app, "about")
        assert app.screen.draft.spec.name == "lr"

    play(scene(gpus=1).live().app(), script)
    golden(sheet(shown))


def test_typing_and_steps_are_judged_at_once(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*EDIT_ACCUM, "9", "9")
        await pilot.pause()
        with pytest.raises(KnobError) as refused:
            check_value(app.screen.draft.spec, 99)
        assert read(app, "verdict") == f"✕ {refused.value}"
        await pilot.press("enter")
        assert there.client.sent == []
        await pilot.press("up")
        await pilot.pause()
        assert app.screen.query_one(Input).value == "5"
        assert read(app, "verdict") == "✓ 4 → 5"
        await pilot.press("down", "down")
        await pilot.pause()
        assert app.screen.query_one(Input).value == "3"

    play(there.app(), script)


def test_a_command_from_sent_to_its_measured_effect(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*EDIT_ACCUM, "8", "enter")
        await pilot.pause()
        (command,) = there.client.sent
        assert (command.verb, command.knob, command.value, command.expect_version) == (
            "set",
            "grad_accum",
            8,
            3,
        )
        shown["sent"] = read(app, "trail")
        outcome(there, stage="accepted")
        await told(app, pilot)
        shown["accepted"] = read(app, "trail")
        outcome(there, stage="scheduled", step=1205)
        await told(app, pilot)
        shown["scheduled"] = read(app, "trail")
        assert "in effect     4" in read(app, "about"), "a pending value is never shown as the value"
        outcome(there, stage="applied", step=1205, before=4, effective=8, version=4)
        accum = msgspec.structs.replace(there.run.knobs[2], value=8, version=4, by="ana (pid 4121)")
        there.update(run={"knobs": (*there.run.knobs[:2], accum, *there.run.knobs[3:])})
        await told(app, pilot)
        shown["applied"] = f"{read(app, 'about')}\n{read(app, 'trail')}"
        for measured, sign in (
            (Measured(iterations=7, note="measuring: 7 of 15 iterations"), ""),
            (Measured(gain=0.001, interval=0.018, settled=True), ""),
            (Measured(gain=0.061, interval=0.012, detectable=True, settled=True), "▲ "),
            (Measured(gain=-0.03, interval=0.01, detectable=True, settled=True), "▼ "),
        ):
            record = msgspec.structs.replace(there.client.store.commands["c0"], measured=measured)
            there.tell(commands=(record,))
            await told(app, pilot)
            assert read(app, "trail").splitlines()[2] == sign + vocabulary.effect_text(measured)
        await pilot.press("enter")
        assert isinstance(app.screen, RunScreen), "with nothing to change, enter closes"

    play(there.app(), script)
    golden(sheet(shown))


@pytest.mark.parametrize(
    ("stage", "code", "reason"),
    [
        ("rejected", "version_conflict", "ana (pid 4121) set it to 16 meanwhile"),
        ("failed", "", "the setter raised ValueError: no"),
        ("superseded", "", "a later command took its place"),
        ("voided", "", "the run restarted first"),
        ("expired", "", "no iteration ended within 600 s"),
    ],
)
def test_what_did_not_happen_is_told_in_its_sentence(
    scene: MakeScene, play: Play, read: Read, stage: Any, code: str, reason: str
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*EDIT_ACCUM, "8", "enter")
        outcome(there, stage=stage, code=code, reason=reason)
        await told(app, pilot)
        assert f"{stage}: {reason}" in read(app, "trail")
        await pilot.press("escape")
        await pilot.pause()
        assert f"{stage}: {reason}" in read(app, "event-lines")

    play(there.app(), script)


def test_a_change_by_somebody_else_is_seen_before_anything_is_sent(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*EDIT_ACCUM, "8")
        accum = msgspec.structs.replace(there.run.knobs[2], value=16, version=4, by="bo (pid 5)")
        there.update(run={"knobs": (*there.run.knobs[:2], accum)})
        await pilot.press("enter")
        await pilot.pause()
        assert there.client.sent == []
        shown["enter"] = read(app, "verdict")
        await pilot.press("enter")
        await pilot.pause()
        assert [(c.value, c.expect_version) for c in there.client.sent] == [(8, 4)]

    play(there.app(), script)
    golden(sheet(shown))


def test_nothing_is_sent_into_a_lost_link(scene: MakeScene, play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*EDIT_ACCUM, "8")
        there.client.link = Link("lost", 0.0)
        await pilot.press("enter")
        await pilot.pause()
        shown["a change"] = read(app, "verdict")
        await pilot.press("escape", "p", "c", "u", "s", "e")
        assert isinstance(app.screen, RunScreen)
        there.client.link = Link("live", 0.0)
        await pilot.press("s")
        there.client.link = Link("lost", 0.0)
        await told(app, pilot)
        assert "link lost" in app.screen_stack[-2].query_one("#identity", Lines).text, "seen below the box"
        await pilot.press("y")
        await pilot.pause()
        shown["a stop"] = str(list(app._notifications)[-1].message)
        assert (there.client.sent, there.client.renewed) == ([], [])

    play(there.app(), script)
    golden(sheet(shown))


def test_pause_and_checkpoint_are_one_key_each_and_undo_asks_what_it_alters(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live().history()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("p", "c", "u", "y")
        await pilot.pause()
        assert [(c.verb, c.knob, c.value, c.expect_version) for c in there.client.sent] == [
            ("pause", "", None, None),
            ("checkpoint", "", None, None),
            ("set", "num_envs", 1024, 1),
        ]
        outcome(there, stage="applied")
        there.update(vital={"state": "paused", "paused_left_s": 60.0})
        await told(app, pilot)
        assert "p go on" in read(app, "keys")
        there.client.ns += 21 * SECOND
        app.tick()
        assert there.client.renewed == ["3f2a9c10"]
        await pilot.press("p")
        assert there.client.sent[-1].verb == "resume"

    play(there.app(), script)


def test_a_mouse_that_goes_down_on_one_key_and_up_on_another_presses_neither(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        pause, history = (read(app, "keys").index(key) + 1 for key in ("p pause", "h history"))
        for down, up, sent in ((history, pause, []), (0, pause, []), (pause, pause + 2, ["pause"])):
            row = app.size.height - 1
            for kind, x in ((MouseDown, down), (MouseUp, up)):
                app.post_message(kind(None, x, row, 0, 0, 1, False, False, False, x, row))
                await pilot.pause()
            assert [c.verb for c in there.client.sent] == sent

    play(there.app(), script)


def test_a_click_on_a_key_or_a_row_is_a_press(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.click("#keys", offset=(read(app, "keys").index("p pause") + 1, 0))
        assert [c.verb for c in there.client.sent] == ["pause"]
        await pilot.click("#knob-list", offset=(4, 2))
        await pilot.pause()
        assert read(app, "knob-list").splitlines()[2].startswith("› grad_accum")
        await pilot.click("#knob-list", offset=(4, 3), times=2)
        assert isinstance(app.screen, KnobEditor)
        assert app.screen.draft.spec.name == "lr"

    play(there.app(), script)


def test_only_y_stops_a_run(scene: MakeScene, play: Play, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        for answer in ("n", "escape", "enter", "q", "s"):
            await pilot.press("s")
            assert isinstance(app.screen, Confirm), answer
            shown["s"] = app.screen.question
            await pilot.press(answer)
            assert there.client.sent == [], answer
            if isinstance(app.screen, Confirm):
                await pilot.press("n")
        await pilot.press("s", "y")
        await pilot.pause()
        assert [c.verb for c in there.client.sent] == ["stop"]

    play(there.app(), script)
    golden(sheet(shown))


def test_a_run_that_declines_a_stop_says_why_and_asks_nothing(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()
    there.update(run={"declined": {"stop": "press Ctrl-C where it runs"}})

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("s")
        await pilot.pause()
        assert not isinstance(app.screen, Confirm)
        assert [notice.message for notice in app._notifications] == [
            "this run offers no stop: press Ctrl-C where it runs"
        ]
        assert there.client.sent == []

    play(there.app(), script)


def test_leaving_sends_nothing(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("q")

    app = there.app()
    play(app, script)
    assert there.client.closed
    assert there.client.sent == []
    assert app.return_code == 0


@pytest.mark.parametrize(
    ("box", "key"),
    [
        ((), "ctrl+c"),
        (("question_mark",), "ctrl+c"),
        (("question_mark",), "ctrl+q"),
        (("e",), "ctrl+c"),
        (("s",), "ctrl+c"),
        (("ctrl+p",), "ctrl+c"),
    ],
)
def test_the_key_that_ends_everything_does_so_with_a_box_open(
    scene: MakeScene, play: Play, box: tuple[str, ...], key: str
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*box)
        assert len(app.screen_stack) == 1 + len(box)
        await pilot.press(key)
        assert app.return_code == 0, "it has been left"

    play(there.app(), script)
    assert there.client.sent == []


def test_the_help_page_and_the_palette_know_every_action(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live().history()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        page = " ".join(read(app, "help-lines").split())
        assert all(action.help in page for action in actions.of("everywhere", "run") if action.help)
        assert " ".join(vocabulary.STATES["unresponsive"]) in page
        await pilot.press("escape", "ctrl+p")
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*"knobeditlr")
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.press("enter")
        await pilot.pause()
        if isinstance(app.screen, CommandPalette):
            await pilot.press("enter")
            await pilot.pause()
        assert isinstance(app.screen, KnobEditor)
        assert app.screen.draft.spec.name == "lr"

    play(there.app(), script)


def test_a_vanished_run_leaves_the_screen_standing(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("e")
        there.client.store.apply(
            Delta(id=2, now=there.client.ns, state=99, node=msgspec.structs.replace(there.node, runs=()))
        )
        app.client.on_change("node")
        await pilot.pause()
        await pilot.press("up", "enter", "escape", "e", "u", "p", "m")
        await pilot.pause()
        assert there.client.sent == []
        assert "ppo-cartpole" in read(app, "identity")

    play(there.app(), script)


def test_every_full_screen_says_that_frames_are_left_out_and_how_to_leave(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any, key: str) -> None:
        await pilot.press(key)
        await pilot.pause()
        app.pace.due(app.clock(), 9)
        full = next(screen for screen in reversed(app.screen_stack) if isinstance(screen, LiveScreen))
        full.draw(EVERYTHING)
        shown[key] = full.query_one(KeyBar).text
        assert shown[key].endswith("q leave")

    for key in ("h", "t", "g", "slash", "f4", "d"):
        play(scene(gpus=1).live().app(), partial(script, key=key))
    golden(sheet(shown))
