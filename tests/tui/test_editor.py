"""The knob editor: questions before what changes what is learned, stale changes, several changes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from textual.events import Key
from textual.widgets import Input

from hoptui.protocol.messages import Origin
from hoptui.tui.dialogs import Confirm
from hoptui.tui.screens.knob_editor import content
from hoptui.tui.screens.knob_editor.screen import KnobEditor, StagedBox
from hoptui.tui.screens.run.screen import RunScreen
from tests import factories
from tests.client import fake_daemon
from tests.golden import Golden, sheet
from tests.tui.conftest import KNOBS, RUN

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
EDIT_ACCUM = ("down", "down", "e")
EDIT_LR = ("down", "down", "down", "e")
BO = Origin(user="bo", pid=5, client="dashboard")


def overtake(there: Any, place: int, **fields: Any) -> None:
    """Somebody else changes the knob at a place of the list."""
    knobs = list(there.run.knobs)
    knobs[place] = msgspec.structs.replace(knobs[place], by="bo (pid 5)", **fields)
    there.update(run={"knobs": tuple(knobs)})


def settle(there: Any, command: str, **fields: Any) -> None:
    fake_daemon.settle(there.client.store, command, there.client.ns, **fields)


def sent(there: Any) -> list[tuple[str, Any, int | None]]:
    return [(c.knob, c.value, c.expect_version) for c in there.client.sent]


async def press(pilot: Any, *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


def test_when_it_takes_effect_is_told_as_far_as_it_is_known(scene: MakeScene, golden: Golden) -> None:
    shown = {}
    for pace, age in ((1.82, 1.0), (6.0, 1.0), (0.02, 0.4), (None, 0.4)):
        there = scene().live()
        there.update(vital={"iteration_s": pace, "progress_age_s": age})
        view = there.app().view(RUN)
        shown[f"an iteration takes {pace} s, the last was {age} s ago"] = content.when(view, KNOBS[1].spec)
    golden(sheet(shown))


@pytest.mark.parametrize(
    ("knob", "keys", "typed"),
    [
        (("down", "down"), ["9", "9", "x", "y", "z", "4", "e", "minus", "2"], "994e-2"),
        (("up",), ["down"], "on"),
    ],
)
def test_what_is_typed_is_what_the_knob_can_take(
    scene: MakeScene, play: Play, knob: tuple[str, ...], keys: list[str], typed: str
) -> None:
    there = scene().live()
    flag = factories.knob("compile", False)
    there.update(run={"knobs": (flag, *KNOBS)} if typed == "on" else {})

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *knob, "e", *keys)
        assert app.screen.query_one(Input).value == typed

    play(there.app(), script)


def test_what_changes_the_mathematics_is_sent_only_after_a_yes(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_LR, "up", "enter")
        assert isinstance(app.screen, Confirm)
        shown["the question"] = read(app, "question")
        await press(pilot, "enter", "e")
        assert isinstance(app.screen, Confirm), "the keys that open the editor are no answer"
        await press(pilot, "n")
        assert isinstance(app.screen, KnobEditor)
        assert sent(there) == []
        await press(pilot, "enter", "y")
        assert sent(there) == [("lr", 5e-4, 0)]
        assert "→ sent" in read(app, "trail")
        await press(pilot, "enter")
        shown["once more"] = read(app, "verdict")
        assert len(sent(there)) == 1

    play(there.app(), script)
    golden(sheet(shown))


def test_a_letter_is_a_key_only_where_no_letter_is_typed(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, "end", "e", "a")
        assert app.screen.query_one(Input).value == "a", "precision is a text"
        assert "insert stage" in str(app.screen.query_one("#editor").border_subtitle)
        await press(pilot, "escape", *["up"] * 4, "e", "2", "a")
        assert isinstance(app.screen, RunScreen)
        assert [(one.spec.name, one.value) for one in app.staging.of(there.run.run)] == [("grad_accum", 2)]

    play(there.app(), script)


def test_a_change_of_speed_alone_needs_no_question(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "pageup", "enter")
        assert sent(there) == [("grad_accum", 10, 3)]

    play(there.app(), script)


def test_a_stale_change_is_refused_once_and_then_sent_with_the_new_version(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8")
        overtake(there, 2, value=16, version=4)
        app.client.on_change("node")
        await pilot.pause()
        shown["bo sets 16"] = read(app, "verdict")
        await press(pilot, "enter")
        assert sent(there) == []
        shown["enter"] = read(app, "verdict")
        overtake(there, 2, value=32, version=5)
        await press(pilot, "enter")
        assert sent(there) == [], "it has changed once more"
        shown["bo sets 32, enter"] = read(app, "verdict")
        await press(pilot, "enter")
        assert sent(there) == [("grad_accum", 8, 5)]

    play(there.app(), script)
    golden(sheet(shown))


def test_a_stale_change_to_the_value_that_is_in_effect_closes_the_editor(
    scene: MakeScene, play: Play
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8")
        overtake(there, 2, value=8, version=4)
        await press(pilot, "enter")
        assert isinstance(app.screen, RunScreen)
        assert sent(there) == []

    play(there.app(), script)


def test_what_somebody_else_has_sent_already_is_seen_before_it_takes_effect(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()
    there.record(
        id="z", ago_s=1.0, stage="scheduled", knob="grad_accum", before=4, wanted=16, step=1205, origin=BO
    )

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8")
        shown["8"] = read(app, "verdict")

    play(there.app(), script)
    golden(sheet(shown))


def test_a_change_between_question_and_answer_is_not_overwritten(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_LR, "up", "enter")
        overtake(there, 3, value=1e-3, version=1)
        await press(pilot, "y")
        assert isinstance(app.screen, KnobEditor)
        assert sent(there) == []

    play(there.app(), script)


def test_a_change_is_stale_after_a_restart_only_where_the_value_is_another(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8")
        there.update(run={"epoch": 2})
        overtake(there, 2, version=0)
        await press(pilot, "enter")
        assert sent(there) == [("grad_accum", 8, 0)]
        there.update(run={"epoch": 3})
        overtake(there, 2, value=16, version=0)
        settle(there, "c0", stage="voided")
        await press(pilot, "enter")
        assert len(sent(there)) == 1
        assert "16 is in effect" in read(app, "verdict")
        await press(pilot, "enter")
        assert sent(there)[1:] == [("grad_accum", 8, 0)]

    play(there.app(), script)


def test_several_changes_are_staged_and_sent_together(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8", "a")
        assert isinstance(app.screen, RunScreen)
        await press(pilot, "down", "e", "up", "a", "end", "e", "down", "insert")
        assert "a send 3 staged" in read(app, "keys")
        assert sent(there) == []
        await press(pilot, "a")
        assert isinstance(app.screen, StagedBox)
        shown["staged"] = read(app, "staged-list")
        await press(pilot, "enter")
        shown["the question"] = read(app, "question")
        await press(pilot, "y")
        assert [knob for knob, _, _ in sent(there)] == ["grad_accum", "lr", "precision"]
        shown["sent"] = read(app, "staged-summary")
        for command in there.client.sent:
            settle(there, command.id, step=1205, version=9)
        app.client.on_change("commands")
        await pilot.pause()
        shown["applied"] = read(app, "staged-summary")
        await press(pilot, "enter", "x")
        assert len(there.client.sent) == 3, "they are sent once"
        await press(pilot, "escape")
        assert "staged" not in read(app, "keys")

    play(there.app(), script)
    golden(sheet(shown))


def test_of_keys_that_come_all_at_once_the_arrow_moves_before_the_change_is_taken_out(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8", "a", "down", "e", "up", "a", "a")
        assert isinstance(app.screen, StagedBox)
        for key in ("down", "x", "enter"):
            app.post_message(Key(key, None))
        await pilot.pause()
        await pilot.pause()
        assert [knob for knob, _, _ in sent(there)] == ["grad_accum"]

    play(there.app(), script)


def test_a_failure_of_one_is_told_with_the_fate_of_the_others(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8", "a", *EDIT_LR[2:], "up", "a", "a", "enter", "y")
        settle(there, "c0", step=1205, version=4)
        settle(there, "c1", stage="failed", reason="ValueError: no")
        app.client.on_change("commands")
        await pilot.pause()
        shown["one has failed"] = f"{read(app, 'staged-list')}\n{read(app, 'staged-summary')}"

    play(there.app(), script)
    golden(sheet(shown))


def test_a_stale_staged_change_is_refused_once_before_anything_is_sent(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8", "a", "down", "e", "up", "a")
        overtake(there, 2, value=16, version=4)
        await press(pilot, "a")
        shown["bo sets 16"] = read(app, "staged-list")
        await press(pilot, "enter")
        shown["enter"] = f"{read(app, 'staged-list')}\n{read(app, 'staged-summary')}"
        assert sent(there) == []
        await press(pilot, "enter", "y")
        assert sent(there) == [("grad_accum", 8, 4), ("lr", 5e-4, 0)]

    play(there.app(), script)
    golden(sheet(shown))


def test_a_staged_change_is_edited_and_taken_out(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await press(pilot, *EDIT_ACCUM, "8", "a", "a", "e")
        assert app.screen.query_one(Input).value == "8"
        await press(pilot, "up", "a")
        assert "grad_accum 4 → 9" in read(app, "staged-list")
        await press(pilot, "x")
        assert isinstance(app.screen, RunScreen)
        assert app.staging.of(there.run.run) == []

    play(there.app(), script)


def test_who_only_looks_sees_no_key_that_steers(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live().history()
    there.client.read_only = True

    async def script(app: Any, pilot: Any) -> None:
        keys = read(app, "keys")
        for label in ("edit", "staged", "undo", "pause", "stop"):
            assert label not in keys
        assert "h history" in keys
        await press(pilot, "e", "enter", "a", "u", "p", "s", "c")
        assert isinstance(app.screen, RunScreen)
        assert (there.client.sent, there.client.renewed) == ([], [])

    play(there.app(), script)
