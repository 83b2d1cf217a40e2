"""The history screen: what a row and a story say, filters, and the line that is copied."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hoptui.client.client import Link
from hoptui.client.replay import Replay
from hoptui.domain.tuning import Measured
from hoptui.model.store import MOST_COMMANDS
from hoptui.node.addresses import addresses
from hoptui.presentation import vocabulary
from hoptui.presentation.numbers import grouped
from hoptui.protocol.messages import Origin
from hoptui.recording import Recording
from hoptui.tui.components import events
from hoptui.tui.dialogs import FilterBox
from hoptui.tui.replay_app import ReplayApp
from hoptui.tui.screens.history import content
from hoptui.tui.screens.history.screen import HistoryScreen, Story
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import lay
from hoptui.tui.widgets import Panel
from tests import factories
from tests.golden import Golden, sheet
from tests.model.recorded_run import ID, at, write

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
RUN = "3f2a9c10"
WALL = 1_780_000_000.0
GAIN = Measured(
    metric="env_steps_per_s",
    before=480e3,
    after=509e3,
    gain=0.061,
    interval=0.012,
    detectable=True,
    iterations=15,
)


def given(scene: Any) -> Any:
    """A run with a change that helped, its undo, a refusal of the tuner, and a pause."""
    there = scene(gpus=1).live()
    there.record(
        id="a", ago_s=180.0, knob="num_envs", before=1024, wanted=2048, effective=2048, version=1, step=1090,
        measured=GAIN, why="more at once",
    )  # fmt: skip
    there.record(
        id="b", ago_s=120.0, knob="num_envs", before=2048, wanted=1024, effective=1024, version=2, step=1110,
        why="undo of a",
    )  # fmt: skip
    there.record(
        id="c",
        ago_s=60.0,
        knob="lr",
        before=3e-4,
        wanted=2.0,
        stage="rejected",
        reason="lr = 2 is out of bounds",
        origin=Origin(kind="tuner", user="ana"),
    )
    there.record(id="d", ago_s=30.0, verb="pause", step=1190)
    return there


def look(there: Any, run: str | None = RUN) -> View:
    store = there.client.store
    return View(store, there.client.link, store.run(run) if run else None, None, store.now(), WALL, 0.0)


def said(lines: Any) -> str:
    return "\n".join("".join(span.text.ljust(span.width) for span in line) for line in lines)


@pytest.mark.parametrize("width", [58, 76, 116, 196])
def test_a_row_never_cuts_what_a_change_did_while_there_is_something_to_leave_out(
    scene: MakeScene, width: int
) -> None:
    view = look(given(scene))
    records = list(reversed(view.commands()))
    cells = content.columns(view, records, width)
    effect = next(
        line for line in content.CommandRows(view, records, cells, 0, width) if "+6.1" in said([line])
    )
    assert content.MARGIN + sum(cells[:-1]) + len("▲ +6.1 % ± 1.2") <= width
    assert bool(cells.who) == (width > 58)
    assert ("480 k → 509 k env steps/s" in said([effect])) == (width >= 116)
    assert bool(cells.at) == (width > 58)
    assert cells.pids == (width >= 116)


def test_room_that_is_left_is_the_change_s(scene: MakeScene) -> None:
    there = scene().live(history=False)
    wide = GAIN, msgspec.structs.replace(GAIN, gain=0.001, interval=0.42, detectable=False)
    for i, measured in enumerate(wide):
        there.record(
            id=f"{i}", knob="minibatch_size", before=4096, wanted=32768, effective=32768, measured=measured
        )
    records = look(there).commands()
    cells = content.columns(look(there), records, 76)
    lines = content.CommandRows(look(there), records, cells, 0, 76)
    rows = ["".join(piece for piece, _ in lay(line, 76)).rstrip() for line in lines]
    assert all("minibatch_size 4 096 → 32 768" in row for row in rows)
    assert any(row.endswith(vocabulary.effect_text(wide[1])) for row in rows)


def test_where_the_interval_would_be_cut_the_effect_is_told_without_it(scene: MakeScene) -> None:
    there = given(scene)
    none = Measured(gain=0.01, interval=0.42, settled=True)
    there.record(
        id="n",
        ago_s=20.0,
        knob="rollout_steps_of_each_environment",
        before=1,
        wanted=2,
        effective=2,
        measured=none,
    )
    view = look(there)
    records = list(reversed(view.commands()))
    place = next(i for i, record in enumerate(records) if record.id == "n")
    for width, brief in ((58, True), (196, False)):
        rows = content.CommandRows(view, records, content.columns(view, records, width), 0, width)
        assert said([rows[place]]).endswith(f" {vocabulary.effect_text(none, brief=brief)}")


def test_the_whole_story_of_a_change(scene: MakeScene, golden: Golden) -> None:
    view = look(given(scene))
    commands = view.store.commands
    kinds = {"a change": "a", "its undo": "b", "one that was refused": "c", "a pause": "d"}
    golden(
        sheet({kind: said(content.story(view, commands[one], 90, commands)) for kind, one in kinds.items()})
    )


def test_a_shared_effect_is_never_told_as_one_change_s_own(scene: MakeScene, golden: Golden) -> None:
    there = scene().live()
    shared = msgspec.structs.replace(GAIN, note="together with num_envs")
    there.record(id="a", knob="lr", before=1e-3, wanted=3e-4, effective=3e-4, measured=shared)
    view = there.app().view(RUN)
    shown = {f"{w} columns": said([events.last_change(view, w)]) for w in (90, 40, 33, 20, 5)}
    golden(sheet(shown))


def test_a_change_that_cannot_be_detected_keeps_its_interval_and_the_process_gives_way(
    scene: MakeScene,
) -> None:
    there = scene().live(history=False)
    none = msgspec.structs.replace(GAIN, gain=0.004, interval=0.227, detectable=False)
    there.record(
        id="a", ago_s=60.0, knob="grad_accum", before=2, wanted=4, effective=4, step=2130, measured=none
    )
    view = look(there)
    records = list(view.commands())
    for width, process in ((160, True), (116, False), (76, False)):
        row = said([content.CommandRows(view, records, content.columns(view, records, width), 0, width)[0]])
        assert vocabulary.effect_text(none) in row
        assert ("(pid 4121)" in row) is process
        assert len(row) <= width


def test_the_screen_shows_filters_and_copies(scene: MakeScene, play: Play, read: Read) -> None:
    there = given(scene)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("h")
        await pilot.pause()
        assert isinstance(app.screen, HistoryScreen)
        rows = read(app, "command-list").splitlines()
        assert "pause" in rows[0]
        assert "lr" in rows[1]
        assert app.screen.query_one("#commands", Panel).title == "Commands · 4"
        await pilot.press("slash", *"num_envs")
        await pilot.pause()
        assert isinstance(app.screen, FilterBox)
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen.query_one("#commands", Panel).title == "Commands · 2 of 4"
        await pilot.press("down", "y")
        assert shlex.split(app.clipboard) == ["hoptui", "set", "ppo-cartpole", "num_envs=2048"]
        assert [n.message for n in app._notifications] == [app.clipboard]
        await pilot.press("slash", "x", "escape")
        await pilot.pause()
        assert str(app.screen.wanted) == "num_envs", "escape goes back to the filter of before"
        await pilot.press("slash", *["backspace"] * 8, "enter", "b", "b")
        await pilot.pause()
        assert str(app.screen.wanted) == "by:tuner"
        await pilot.press("b", "s", "s")
        await pilot.pause()
        assert str(app.screen.wanted) == "stage:rejected"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, Story)
        assert "✕ rejected" in read(app, "story-lines")
        await pilot.press("y", "escape", "escape")
        assert shlex.split(app.clipboard) == ["hoptui", "set", "ppo-cartpole", "lr=2.0"]
        assert there.client.sent == []

    play(there.app(), script)


def test_a_long_story_has_the_keys_of_a_pager(scene: MakeScene, play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("h", "enter")
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, Story)
        scroll = app.screen.query_one("#story-scroll")
        assert scroll.max_scroll_y > 1
        for key, there in (("j", 1), ("G", scroll.max_scroll_y), ("k", scroll.max_scroll_y - 1), ("home", 0)):
            await pilot.press(key)
            await pilot.pause()
            assert scroll.scroll_y == there, key

    play(given(scene).app(), script, size=(44, 9))


def test_a_chosen_command_stays_chosen_when_another_comes_in(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = given(scene)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("h", "down")
        await pilot.pause()
        there.record(id="e", ago_s=1.0, verb="resume", step=1190)
        app.client.on_change("commands")
        await pilot.pause()
        rows = read(app, "command-list").splitlines()
        assert "resume" in rows[0]
        assert rows[2].startswith("› ")
        assert "lr" in rows[2]

    play(there.app(), script, size=(80, 24))


def test_until_the_cursor_is_moved_it_is_on_the_newest(scene: MakeScene, play: Play, read: Read) -> None:
    there = given(scene)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("h")
        await pilot.pause()
        there.record(id="e", ago_s=1.0, verb="resume", step=1190)
        app.client.on_change("commands")
        await pilot.pause()
        first = read(app, "command-list").splitlines()[0]
        assert first.startswith("› ")
        assert "resume" in first

    play(there.app(), script, size=(80, 24))


def test_the_overview_has_the_commands_of_all_runs(scene: MakeScene, play: Play, read: Read) -> None:
    there = given(scene)

    async def script(app: Any, pilot: Any) -> None:
        assert isinstance(app.screen, OverviewScreen)
        await pilot.press("h")
        await pilot.pause()
        assert "all runs" in read(app, "identity")
        assert "unknown" not in read(app, "identity"), "a node has no state"
        assert "ppo-cartpole" in read(app, "command-list")
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)

    play(there.app(run=None), script)


def test_a_recording_has_its_commands_as_far_as_it_has_come(
    tmp_path: Path, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    replay = Replay(write(tmp_path / f"{ID}.hoptui"), clock=lambda: 100.0)
    app = ReplayApp(replay, clock=lambda: 100.0, frames=False)

    async def main() -> None:
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            replay.pause()
            replay.seek(at(305))
            await pilot.press("h")
            await pilot.pause()
            rows = read(app, "command-list").splitlines()
            assert "grad_accum 4 → 8" in rows[0]
            assert "◷ scheduled" in rows[0]
            assert "lr 1.0e-3 → 3.0e-4" in rows[1]
            assert "rejected" not in "".join(rows), "that is in the future"
            await pilot.press("full_stop")
            await pilot.pause()
            assert "● applied" in read(app, "command-list").splitlines()[0]
            await pilot.press("y")
            (told,) = app._notifications
            shown[told.title] = str(told.message)

    asyncio.run(main())
    golden(sheet(shown))


def test_nothing_was_ever_asked(scene: MakeScene, play: Play, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("h", "enter", "y", "slash", "s", "b")
        await pilot.pause()
        assert isinstance(app.screen, HistoryScreen)
        shown["commands"] = read(app, "command-list")
        assert not app.screen.query_one("#history-head").display, "there are no columns to name"

    play(scene(gpus=1).live().app(), script)
    golden(sheet(shown))


def test_at_the_end_of_the_list_those_that_the_store_no_longer_holds_are_read(
    scene: MakeScene, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(tmp_path / "state"))
    there = scene().live(history=False)
    first = WALL - 10 * MOST_COMMANDS
    given = [
        factories.record(f"c{i}", RUN, verb="checkpoint", t=i + 1, wall=first + i, seq=i + 1)
        for i in range(MOST_COMMANDS + 30)
    ]
    with Recording.create(addresses().recording(RUN)) as recording:
        for record in given:
            recording.command(record)
        recording.flush()
    there.tell(commands=tuple(given[30:]))

    async def script(app: Any, pilot: Any) -> None:
        app.push_screen(HistoryScreen(RUN))
        await pilot.pause()
        panel = app.screen.query_one("#commands", Panel)
        assert panel.title.startswith(f"Commands · {grouped(2000)} newest · ")
        shown["before the end"] = str(panel.border_subtitle)
        await pilot.press("end")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert panel.title.startswith(f"Commands · {grouped(2030)} newest · ")
        await pilot.press("end")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert panel.title.startswith(f"Commands · {grouped(2030)} · "), "there is nothing before them"
        shown["at the end"] = str(panel.border_subtitle)
        await pilot.press("enter")
        await pilot.pause()
        assert "checkpoint" in app.screen.query_one("#story-lines").text

    play(there.app(), script)
    golden(sheet(shown))


def test_on_another_node_it_is_told_where_older_ones_are(
    scene: MakeScene, play: Play, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene().live(history=False)
    there.client.link = Link("live", 0.0, node="gpu07")
    there.tell(
        commands=tuple(
            factories.record(f"c{i}", RUN, verb="checkpoint", t=i + 1, wall=WALL - 9, seq=i + 1)
            for i in range(MOST_COMMANDS)
        )
    )

    async def script(app: Any, pilot: Any) -> None:
        app.push_screen(HistoryScreen(RUN))
        await pilot.pause()
        await pilot.press("end")
        assert not app.workers
        shown["gpu07"] = str(app.screen.query_one("#commands").border_subtitle)

    play(there.app(), script)
    golden(sheet(shown))
