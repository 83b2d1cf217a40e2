"""The tuner in the dashboard: started, stopped and told to leave knobs alone by keys, and nothing of it by
accident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.events import Key

from hoptui.client.client import Link
from hoptui.domain.diagnosis import Advice
from hoptui.domain.tuning import Limits, Tuned
from hoptui.tui.dialogs import Confirm
from hoptui.tui.screens.knob_editor.screen import KnobEditor
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.screens.tuner.screen import LimitsBox, TunerScreen
from tests.golden import Golden, sheet
from tests.tui.conftest import RUN, SECOND, Scene
from tests.tui.tuned_run import DIAGNOSIS, HOLDING, STATE, STOPPED, tuned

Play = Callable[..., None]
Read = Callable[[Any, str], str]


async def told(app: Any, pilot: Any) -> None:
    app.client.on_change("node")
    await pilot.pause()
    await pilot.pause()


def refuse(there: Scene, reason: str) -> None:
    there.client.store.apply_tuned(Tuned(id=1, run=RUN, granted=False, reason=reason))


def notices(app: Any) -> list[str]:
    return [str(notice.message) for notice in app._notifications]


def test_started_within_the_limits_that_were_chosen(play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = tuned(None)

    async def script(app: Any, pilot: Any) -> None:
        assert "t tuner" in read(app, "keys")
        await pilot.press("t")
        assert isinstance(app.screen, TunerScreen)
        await told(app, pilot)
        shown["never started"] = read(app, "tuner-facts")
        await pilot.press("x", "space")
        assert there.client.tuned == [], "there is nothing to stop"
        await pilot.press("s")
        assert isinstance(app.screen, LimitsBox)
        await pilot.press("left", "down", "down", "right", "up", "l", "enter")
        await pilot.pause()
        assert isinstance(app.screen, TunerScreen)

    play(there.app(), script)
    assert there.client.tuned == [
        (RUN, "start", "", Limits(memory=0.9, budget=0.06, objective="energy")),
    ]
    golden(sheet(shown))


def test_keys_that_come_all_at_once_keep_their_order(play: Play) -> None:
    there = tuned(None)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("t", "s")
        for key in ("down", "right", "down", "left", "enter"):
            app.post_message(Key(key, None))
        await told(app, pilot)

    play(there.app(), script)
    assert [wish[3] for wish in there.client.tuned] == [Limits(budget=0.06, objective="energy")]


def test_what_changes_the_mathematics_is_asked_about(play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = tuned(None)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("t", "s", *["down"] * 5, "right", "enter")
        assert isinstance(app.screen, Confirm)
        shown["question"] = read(app, "question")
        await pilot.press("n")
        assert isinstance(app.screen, LimitsBox)
        assert there.client.tuned == []
        await pilot.press("enter", "y")
        await pilot.pause()
        assert isinstance(app.screen, TunerScreen)

    play(there.app(), script)
    assert there.client.tuned == [(RUN, "start", "", Limits(learning=("num_envs",)))]
    golden(sheet(shown))


def test_a_dry_run_asks_nothing_and_gives_way_to_a_real_one(play: Play) -> None:
    dry = Limits(learning=("lr",), dry=True)
    there = tuned(replace(STATE, limits=dry))

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("t", "s", *["down"] * 4, "right", "enter")
        await pilot.pause()
        assert isinstance(app.screen, TunerScreen)
        await pilot.press("s", "enter")
        await pilot.pause()
        assert isinstance(app.screen, Confirm), "lr is still allowed, and it is no dry run"
        await pilot.press("y")

    play(there.app(), script)
    assert there.client.tuned == [(RUN, "start", "", dry), (RUN, "start", "", replace(dry, dry=False))]


def test_stopped_and_told_to_leave_a_knob_alone(play: Play, read: Read) -> None:
    there = tuned()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("t")
        await told(app, pilot)
        keys = read(app, "keys")
        assert "x stop tuner" in keys
        assert "start" not in keys
        assert "freeze" not in keys, "the keys go to the trials"
        await pilot.press("space", "s")
        assert isinstance(app.screen, TunerScreen)
        await pilot.press("tab", "down")
        await told(app, pilot)
        assert "› grad_accum" in read(app, "tuned-list")
        assert "space freeze knob" in read(app, "keys")
        await pilot.press("space", "end", "up", "up", "space")
        await pilot.press("x")

    play(there.app(), script)
    assert [wish[1:3] for wish in there.client.tuned] == [
        ("freeze", "grad_accum"),
        ("release", "lr"),
        ("stop", ""),
    ]


def test_energy_that_cannot_be_measured_is_said_at_the_next_tick(play: Play) -> None:
    there = tuned(None)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("t", "s")
        app.screen.draft.limits = Limits(objective="energy")
        await pilot.press("enter")
        await pilot.pause()
        assert there.client.tuned == [(RUN, "start", "", Limits(objective="energy"))]
        fields = {"run": "ppo", "ranks": 4, "gpus": 2}
        answer = Tuned(id=1, run=RUN, granted=False, code="tune.fewer_gpus", fields=fields)
        there.client.store.apply_tuned(answer)
        app.tick()
        await pilot.pause()
        assert "energy cannot be measured: the 4 ranks of ppo use 2 GPU(s)" in notices(app)[-1]

    play(there.app(), script)


def test_a_refusal_is_told_and_so_is_silence(play: Play, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = tuned()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("t", "x")
        reason = "bo (pid 5) is tuning it already"
        refuse(there, reason)
        app.tick()
        await pilot.pause()
        assert notices(app)[-1].endswith(f": {reason}")
        shown["refused"] = notices(app)[-1]
        there.client.ns += 2 * SECOND
        app.tick()
        await pilot.press("x")
        there.client.ns += 6 * SECOND
        app.tick()
        await pilot.pause()
        shown["no answer"] = notices(app)[-1]
        there.client.link = Link("lost", 0.0)
        app.screen.action_stop()
        await pilot.pause()
        shown["a lost link"] = notices(app)[-1]

    play(there.app(), script)
    assert len(there.client.tuned) == 2
    golden(sheet(shown))


@pytest.mark.parametrize("size", [(120, 40), (60, 16)])
def test_who_only_looks_sees_it_all_and_sends_nothing(play: Play, read: Read, size: tuple[int, int]) -> None:
    there = tuned()
    there.client.read_only = True

    async def script(app: Any, pilot: Any) -> None:
        assert "grad_accum 4 → 2" not in read(app, "keys")
        await pilot.press("t", "s", "x", "space", "o", "tab", "down", "s", "x", "space", "o", "enter")
        await told(app, pilot)
        assert isinstance(app.screen, TunerScreen)
        assert "◷ trial" in read(app, "tuner-facts")
        for word in ("start", "stop", "freeze", "grad_accum"):
            assert word not in read(app, "keys")

    play(there.app(), script, size)
    assert (there.client.tuned, there.client.sent) == ([], [])


@pytest.mark.parametrize("where", [(), ("t",)], ids=["run", "tuner"])
def test_advice_is_taken_by_one_key(play: Play, read: Read, where: tuple[str, ...], golden: Golden) -> None:
    there = tuned()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*where)
        await told(app, pilot)
        assert "o grad_accum 4 → 2" in read(app, "keys")
        await pilot.press("o")
        await pilot.pause()

    play(there.app(), script)
    (command,) = there.client.sent
    assert (command.verb, command.knob, command.value, command.expect_version) == ("set", "grad_accum", 2, 3)
    golden([command.why])


def test_advice_that_changes_the_mathematics_is_asked_about_and_a_direction_is_typed(play: Play) -> None:
    learning = replace(DIAGNOSIS, advice=(Advice(knob="num_envs", direction="up", value=4096),))
    there = tuned(diagnosis=learning)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("o")
        assert isinstance(app.screen, Confirm)
        assert app.screen.question == "Set num_envs 2 048 → 4 096?"
        await pilot.press("n")
        assert there.client.sent == []
        there.update(run={"diagnosis": replace(DIAGNOSIS, advice=(Advice(knob="lr", direction="up"),))})
        await told(app, pilot)
        await pilot.press("o")
        assert isinstance(app.screen, KnobEditor)
        assert app.screen.draft.spec.name == "lr"

    play(there.app(), script)


def test_without_advice_the_key_does_nothing(play: Play, read: Read) -> None:
    there = tuned(None, None)

    async def script(app: Any, pilot: Any) -> None:
        assert " o " not in read(app, "keys")
        await pilot.press("o")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)

    play(there.app(), script)
    assert there.client.sent == []


def test_the_run_screen_has_a_panel_while_there_is_a_tuner(play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}
    there = tuned(None)

    async def script(app: Any, pilot: Any) -> None:
        panel = app.screen.query_one("#tuner")
        assert not panel.display
        there.update(run={"tuner": STATE})
        await told(app, pilot)
        assert panel.display
        assert "◷ trial" in read(app, "tuner-lines")
        app.hide_or_show("run.tuner")
        await told(app, pilot)
        assert not panel.display
        await pilot.press("7")
        await told(app, pilot)
        assert panel.size.height > 20
        assert "↶ reverted  rollout_len 64 → 128" in read(app, "tuner-lines")
        there.update(run={"tuner": None})
        await told(app, pilot)
        shown["no tuner any more"] = read(app, "tuner-lines")
        await pilot.press("escape")
        there.update(run={"tuner": HOLDING})
        await pilot.resize_terminal(80, 24)
        await told(app, pilot)
        assert app.screen.query_one("#knobs").title == "Knobs · 7 · tuner ● watching"

    play(there.app(), script)
    golden(sheet(shown))


def test_the_chosen_trial_stays_chosen_and_enter_on_a_knob_edits_it(play: Play, read: Read) -> None:
    there = tuned(STOPPED)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("t", "down")
        await told(app, pilot)
        assert "↶ reverted" in read(app, "trial-detail")
        there.update(run={"tuner": STATE})
        await told(app, pilot)
        assert "↶ reverted" in read(app, "trial-detail"), "a trial came in above it"
        await pilot.press("enter")
        assert isinstance(app.screen, TunerScreen)
        await pilot.press("tab", "enter")
        assert isinstance(app.screen, KnobEditor)
        await pilot.press("escape", "t")
        assert isinstance(app.screen, RunScreen)

    play(there.app(), script)


def test_a_run_that_is_gone_leaves_the_screen_standing(play: Play, read: Read) -> None:
    there = tuned()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("t", "tab")
        there.tell(node=replace(there.node, runs=()))
        await told(app, pilot)
        await pilot.press("down", "space", "x", "s", "o", "enter", "tab", "down", "tab")
        await told(app, pilot)
        assert "no longer known" in read(app, "identity")

    play(there.app(), script)
    assert there.client.tuned == []
