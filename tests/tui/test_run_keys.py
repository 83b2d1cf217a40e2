"""Keys of the run screen that change what is shown: one panel alone, another metric or stretch of time, a
view that stands still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from hoptui.domain.columns import pack
from hoptui.protocol.messages import Origin, Vital
from hoptui.tui.widgets import Panel

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
RUN = "3f2a9c10"
ANA = Origin(user="ana", pid=4121, client="dashboard")
SECOND = 1_000_000_000
PANELS = {"1": "throughput", "2": "learning", "3": "hardware", "4": "phases", "5": "knobs", "6": "events"}


def test_freezing_keeps_the_numbers_but_not_the_state(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("space")
        await pilot.pause()
        before = read(app, "speed")
        there.client.ns += 4 * SECOND
        there.rows(3)
        there.update(vital={"step": 1300, "state": "busy", "phase": "update"})
        app.tick()
        await pilot.pause()
        assert read(app, "speed") == before
        assert "view frozen" in read(app, "identity")
        assert "1 300" in read(app, "identity")
        assert "space thaw" in read(app, "keys")
        await pilot.press("space")
        await pilot.pause()
        assert "view frozen" not in read(app, "identity")

    play(there.app(), script)


def test_the_ways_back_come_first_where_there_is_room_for_few_keys(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene().live()

    async def script(app: Any, pilot: Any) -> None:
        there.update(vital={"state": "paused"})
        app.tick()
        await pilot.press("space")
        await pilot.pause()
        told = read(app, "keys")
        for back in ("space thaw", "p go on"):
            assert back in told
        assert "e edit knob" not in told

    play(there.app(), script, (60, 24))


def test_the_metric_and_the_span_of_the_charts_can_be_chosen(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("m")
        await pilot.pause()
        assert read(app, "score").splitlines()[0].split()[1:] == ["policy", "loss"]
        assert "−4 min" in read(app, "score-chart")
        await pilot.press("plus")
        await pilot.pause()
        assert "−60 s" in read(app, "score-chart")
        await pilot.press("minus", "minus")
        await pilot.pause()
        assert "−4 min" in read(app, "score-chart")

    play(scene(gpus=1).live().app(), script)


def shown_panels(app: Any) -> list[str]:
    return [name for name in PANELS.values() if app.screen.query_one(f"#{name}", Panel).region.area]


def test_a_digit_shows_one_panel_alone_and_again_all(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        everything = shown_panels(app)
        assert everything == list(PANELS.values())
        assert app.screen.check_action("next_panel", ()) is False, "there is room for both"
        for key, name in PANELS.items():
            await pilot.press(key)
            await pilot.pause()
            assert shown_panels(app) == [name]
            panel = app.screen.query_one(f"#{name}", Panel)
            assert panel.region.width == app.size.width
            assert panel.region.height >= app.size.height - 5
        assert "all panels" in read(app, "keys")
        await pilot.press("6")
        await pilot.pause()
        assert shown_panels(app) == everything
        await pilot.press("1", "escape")
        await pilot.pause()
        assert shown_panels(app) == everything
        assert "all panels" not in read(app, "keys")

    play(scene(gpus=1).live().history().app(), script)


def test_the_panel_shown_alone_is_that_of_one_run_in_this_session(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()
    other = msgspec.structs.replace(there.run, run="beef", name="lm-tinystories")
    there.node = msgspec.structs.replace(there.node, runs=(there.run, other))
    there.tell(node=there.node, vitals={RUN: there.vital, "beef": Vital(state="live", step=310)})

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("4")
        await pilot.pause()
        for run, panels in ((other, list(PANELS.values())), (there.run, ["phases"])):
            app.open_run(run)
            await pilot.pause()
            await pilot.pause()
            assert app.screen.run_id == run.run
            assert shown_panels(app) == panels

    play(there.app(), script)


def test_a_hidden_panel_can_be_shown_alone(scene: MakeScene, play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        for panel in ("run.learning", "run.hardware", "run.phases", "run.events"):
            app.hide_or_show(panel)
        await pilot.pause()
        assert shown_panels(app) == ["throughput", "knobs"]
        for key in "2346":
            await pilot.press(key)
            await pilot.pause()
            assert shown_panels(app) == [PANELS[key]]

    play(scene(gpus=1).live().app(), script)


def test_a_frozen_screen_of_another_size_is_drawn_for_it(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live().history()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("space")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        app.tick()
        await pilot.pause()
        assert "view frozen" in read(app, "identity")
        assert "502 k env steps/s" in read(app, "speed")
        assert "⣀" in read(app, "score-chart"), "its panels are not empty"
        before = read(app, "speed")
        there.client.ns += 4 * SECOND
        there.rows(1)
        there.tell(columns=(pack(f"run/{RUN}", [(there.client.ns, 1300, {"env_steps_per_s": 1.0})]),))
        app.tick()
        assert read(app, "speed") == before, "and stay as they are"

    play(there.app(), script, (80, 24))
