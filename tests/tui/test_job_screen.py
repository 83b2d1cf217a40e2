"""The screen of a run on several nodes: who differs, where the cursor goes, and how a node is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.client.client import Link
from hoptui.client.replay import Replay
from hoptui.client.target import Place
from hoptui.domain.columns import pack
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.jobs import HeadReports
from hoptui.domain.targets import Target, TargetState
from hoptui.domain.tuning import TunerState
from hoptui.presentation import jobs
from hoptui.tui import node_visit
from hoptui.tui.replay_app import ReplayApp
from hoptui.tui.screens.job import heat_maps
from hoptui.tui.screens.job.screen import JobScreen, NodeMap
from hoptui.tui.widgets import Panel
from screenshots.made_up_job import state
from tests.model.node_recordings import FIRST, write_node
from tests.tui.conftest import RUN, SECOND, Scene, rendered

Play = Callable[..., None]
Read = Callable[[Any, str], str]
SMALL = (80, 24)


def large() -> Scene:
    return Scene(gpus=1).live().job(64, 8, first=120)


def test_the_key_works_only_for_a_run_on_several_nodes(play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J")
        assert not isinstance(app.screen, JobScreen)

    play(Scene(gpus=1).live().app(), script)


def test_64_nodes_of_8_ranks_fit_on_a_small_terminal(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J")
        shown = read(app, "node-map")
        for node in range(64):
            assert f"{node} " in f"{shown} ", "every node has its number"
        assert "60 missing" in shown
        assert app.screen.query_one(NodeMap).part == "", "no node is left out"
        told = read(app, "finding-lines")
        assert "rank 328 (gpu41, GPU 0) takes 5" in told
        assert "node gpu51 (ranks 408–415 of 512) has been silent for" in told
        assert "512 ranks on 64 nodes   ● 62 live   ◌ 1 silent   – 1 missing" in read(app, "job-size")
        assert "worst 5" in read(app, "job-spread")

    play(large().app(), script, SMALL)


def test_no_node_of_a_run_that_has_ended_is_shown_as_live(play: Play, read: Read) -> None:
    there = large()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J")
        assert "● live" in read(app, "node-line")
        there.update(vital={"state": "exited"}, run={"exit_reason": "exception"})
        there.client.ns += 60 * SECOND
        app.screen.redraw()
        await pilot.pause()
        size = "512 ranks on 64 nodes   ✕ 62 ended   ◌ 1 silent   – 1 missing"
        assert read(app, "job-size").strip() == size
        assert "✕ ended" in read(app, "node-line")
        assert "rank 328 (gpu41, GPU 0) takes 5" in read(app, "finding-lines"), "what was known last stays"

    play(there.app(), script)


def test_the_cursor_moves_between_columns_and_its_node_is_described(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J", "down", "down")
        assert read(app, "node-line").startswith("gpu02")
        lines = app.screen.query_one(NodeMap).size.height
        await pilot.press("right")
        assert read(app, "node-line").startswith(f"gpu{2 + lines:02}")
        await pilot.press("left", "end")
        assert read(app, "node-line").startswith("gpu63")

    play(large().app(), script, SMALL)


def test_one_key_goes_through_all_readings(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J")
        seen = []
        for _ in jobs.READINGS:
            seen.append(app.screen.reading)
            assert jobs.READINGS[app.screen.reading].label in str(app.screen.query_one("#nodes", Panel).title)
            await pilot.press("m")
        assert seen == list(jobs.READINGS)
        assert app.screen.reading == seen[0]
        await pilot.press("M")
        assert app.screen.reading == seen[-1]

    play(Scene(gpus=1).live().job(2, 2).app(), script)


def test_256_nodes_are_scrolled(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J", "end")
        part = app.screen.query_one(NodeMap).part
        assert part.endswith("–256 of 256")
        assert "255" in read(app, "node-map")
        await pilot.press("home")
        assert app.screen.query_one(NodeMap).part.startswith("1–")

    play(Scene(gpus=1).live().job(256, 8, first=148).app(), script, SMALL)


def test_ranks_share_cells_where_a_node_has_more_of_them(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J")
        assert "2 ranks in a cell" in str(app.screen.query_one("#nodes", Panel).title)
        assert max(map(len, read(app, "node-map").splitlines())) <= 76
        assert "█" in read(app, "node-map"), "the slow rank is seen among its neighbours"

    play(Scene(gpus=1).live().job(2, 120, first=148).app(), script, SMALL)


def test_every_layout_fits_and_shows_every_node_once() -> None:
    for nodes in (1, 2, 3, 9, 64, 256):
        job = state(nodes, 8, 100.0, faults=False)
        for width, height in ((40, 5), (76, 11), (56, 20), (96, 30)):
            grid = heat_maps.grid(job, width, height)
            lines = rendered(heat_maps.nodes_map(job, "own_s", grid, 0), 400)
            assert len(lines) == grid.lines <= height
            assert max(map(len, lines)) <= width, (nodes, width, height)
            if grid.places >= nodes:
                found = {
                    heat_maps.node_at(grid, job, 0, x, y) for x in range(width) for y in range(grid.lines)
                }
                assert found - {None} == set(range(nodes))


@pytest.mark.parametrize("reading", jobs.READINGS)
def test_a_map_over_time_has_the_same_size_whatever_there_is(reading: str) -> None:
    there = Scene(gpus=1).live().job(16, 8, first=90)
    job = there.client.store.job(RUN)
    assert job is not None
    assert job.state is not None
    lines = heat_maps.time_map(job.state, job.moments, reading, 60, 20, 300.0, heat_maps.ShadeCache())
    assert len(lines) <= 20
    assert {len(line) for line in rendered(lines[:-1], 60)} <= set(range(61))
    bare = structs.replace(job.state, nodes=())
    assert heat_maps.time_map(bare, [], reading, 60, 20, 300.0, heat_maps.ShadeCache())


def test_the_slow_rank_is_seen_in_its_group_over_time() -> None:
    there = Scene(gpus=1).live().job(64, 8, first=120)
    job = there.client.store.job(RUN)
    assert job is not None
    assert job.state is not None
    lines = rendered(
        heat_maps.time_map(job.state, job.moments, "own_s", 60, 20, 60.0, heat_maps.ShadeCache()), 60
    )
    assert [line.split()[0] for line in lines if "█" in line] == ["320–351"]


# opening a node ---------------------------------------------------------------------------------------------


class Lent:
    """What was asked of other nodes and of the terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, why: str = "", *, terminal: bool = True) -> None:
        self.hosts: list[str] = []
        self.commands: list[list[str]] = []

        async def unreachable(host: str) -> str:
            self.hosts.append(host)
            return why

        def lend(driver: object, argv: list[str]) -> bool:
            self.commands.append(argv)
            return terminal

        monkeypatch.setattr(node_visit, "unreachable", unreachable)
        monkeypatch.setattr(node_visit, "lend_terminal", lend)


def notes(app: Any) -> str:
    return " ".join(note.message for note in app._notifications)


def test_enter_opens_the_dashboard_of_a_node_over_ssh(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    lent = Lent(monkeypatch)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J", "down", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert lent.hosts == ["gpu01"]
        assert lent.commands[0][1:] == ["-m", "hoptui", "attach", f"ssh://gpu01/{RUN}"]
        assert isinstance(app.screen, JobScreen)

    play(Scene(gpus=1).live().job(2, 2).app(), script)


def test_a_node_that_cannot_be_reached_is_said_so(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    lent = Lent(monkeypatch, "gpu01 cannot be reached from here: No route to host")

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J", "down", "enter")
        await app.workers.wait_for_complete()
        assert "gpu01 cannot be reached from here: No route to host" in notes(app)
        assert lent.commands == []

    play(Scene(gpus=1).live().job(2, 2).app(), script)


def test_this_node_and_one_without_a_name_are_not_opened(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    lent = Lent(monkeypatch)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J", "enter", "end", "enter")
        await app.workers.wait_for_complete()
        assert "gpu00 is the node of this dashboard" in notes(app)
        assert "node 9 has never said its name" in notes(app)
        assert lent.hosts == []

    play(Scene(gpus=1).live().job(10, 2, first=140).app(), script)


class FakeProbe:
    """A connection that comes to a state at once."""

    def __init__(self, link: Link) -> None:
        self.link = Link("connecting", 0.0)
        self._later = link
        self.closed = False

    def start(self) -> None:
        self.link = self._later

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("link", "why"),
    [
        (Link("live", 0.0), ""),
        (
            Link("failed", 0.0, "hoptui is not there"),
            "gpu07 cannot be reached from here: hoptui is not there",
        ),
        (Link("lost", 0.0, "No route to host"), "gpu07 cannot be reached from here: No route to host"),
    ],
)
def test_a_connection_is_tried_first(link: Link, why: str) -> None:
    probe = FakeProbe(link)
    asked: list[Place] = []

    def connect(place: Place) -> FakeProbe:
        asked.append(place)
        return probe

    assert asyncio.run(node_visit.unreachable("gpu07", connect)) == why
    assert probe.closed
    assert asked[0].host == "gpu07"


def test_a_host_name_from_another_node_is_no_option_of_ssh() -> None:
    said = asyncio.run(node_visit.unreachable("-oProxyCommand=x", lambda place: pytest.fail("it was tried")))
    assert "is no host's name" in said


# recordings -------------------------------------------------------------------------------------------------


def test_recordings_of_two_nodes_are_one_job(tmp_path: Path, play: Play, read: Read) -> None:
    paths = [write_node(tmp_path / f"node{node}.hoptui", node) for node in range(2)]
    replay = Replay(paths[0], more=paths[1:], clock=lambda: 0.0)
    app: Any = ReplayApp(replay, clock=lambda: 0.0, frames=False)

    async def main() -> None:
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            await pilot.pause()
            replay.pause()
            replay.seek(FIRST[0] + 150 * SECOND)
            await pilot.press("J")
            await pilot.pause()
            assert "4 ranks on 2 nodes   ● 2 live" in read(app, "job-size")
            assert "the clock of gpu01 is 421 ms ahead of that of gpu00" in read(app, "job-size")
            assert "rank 3 (gpu01) takes 4" in read(app, "finding-lines")
            assert "by 400 common iterations" in notes(app)

    asyncio.run(main())


HEAD = HeadReports(
    host="gpu00",
    diagnosis=Diagnosis(verdict="data-bound", confidence=0.9),
    targets=(TargetState(target=Target(reading="busy", value=90.0), standing="missed", mean=71.0),),
    since=1,
    left_out={"events": 12},
)


def without_rank_0(head: HeadReports | None) -> Scene:
    """The second of ten nodes. Its process logs no loss; rank 0 does."""
    there = Scene(gpus=1).live().job(10, 2)
    there.update(run={"rank": 2, "head": head})
    if head is not None:
        there.tell(columns=(pack(f"head/{RUN}", [(there.client.ns, 1204, {"val_loss": 0.75})]),))
    return there


def test_metrics_of_another_node_have_its_name(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        panel = app.screen.query_one("#learning", Panel)
        for _ in range(8):
            if "0.75" in read(app, "score"):
                break
            await pilot.press("m")
        assert "0.75" in read(app, "score")
        assert "Learning · rank 0 on gpu00" in str(panel.border_title)
        assert "busy ≥ 90 %: 71 % on gpu00" in read(app, "readings")
        await pilot.press("J")
        told = read(app, "finding-lines")
        assert "gpu00: data-bound" in told
        assert "gpu00 alone knows 12 events and metrics before" in told

    play(without_rank_0(HEAD).app(), script, (160, 50))


@pytest.mark.parametrize("age_s", [40.0, 1.0])
def test_what_a_silent_head_has_said_has_its_age(play: Play, read: Read, age_s: float) -> None:
    there, said = without_rank_0(HEAD), "as of 40 s ago"
    there.update(run={"tuner": TunerState(stand="holding")}, vital={"head_age_s": age_s})

    async def script(app: Any, pilot: Any) -> None:
        panel = app.screen.query_one("#learning", Panel)
        for _ in range(8):
            if "0.75" in read(app, "score"):
                break
            await pilot.press("m")
        titles = [str(panel.border_title), str(app.screen.query_one("#tuner", Panel).border_title)]
        shown = [*titles, read(app, "readings")]
        await pilot.press("t")
        shown.append(str(app.screen.query_one("#tuner", Panel).border_title))
        await pilot.press("escape", "J")
        shown += [line for line in read(app, "finding-lines").splitlines() if "gpu00" in line]
        assert len(shown) == 6
        assert [said in text for text in shown] == [age_s == 40.0] * len(shown), shown

    play(there.app(), script, (160, 50))


async def told(app: Any, pilot: Any) -> None:
    app.client.on_change("node")
    await pilot.pause()
    await pilot.pause()


def test_values_of_a_silent_head_are_unknown_where_there_is_no_room_for_their_age(
    play: Play, read: Read
) -> None:
    there = without_rank_0(HEAD)
    there.update(run={"tuner": TunerState(stand="holding"), "headline": "val_loss"})

    async def script(app: Any, pilot: Any) -> None:
        assert "0.75" in read(app, "summary")
        there.update(vital={"head_age_s": 40.0})
        await told(app, pilot)
        assert "0.75" not in read(app, "summary")
        assert "as of 40 s ago" in str(app.screen.query_one("#knobs", Panel).border_title)

    play(there.app(), script, (80, 24))


def test_a_record_of_the_head_that_is_not_valid_is_told(play: Play, read: Read) -> None:
    there = without_rank_0(HEAD)
    state = there.client.store.jobs[RUN]
    broken = structs.replace(state, head_problem="a record is damaged")
    there.client.store.apply_job(RUN, broken)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J")
        assert "what gpu00 says cannot be read: a record is damaged" in read(app, "job-size")

    play(there.app(), script, (160, 50))


def test_what_an_older_head_does_not_say_is_called_unknown(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("J")
        told = "what the node of rank 0 says of the run is not known on this node"
        assert told in read(app, "finding-lines")

    play(without_rank_0(None).app(), script, (160, 50))


def test_the_node_of_rank_0_has_no_other_head(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        panel = app.screen.query_one("#learning", Panel)
        assert "rank 0 on" not in str(panel.border_title)
        await pilot.press("J")
        assert "alone knows" not in read(app, "finding-lines")
        assert "not known on this node" not in read(app, "finding-lines")

    play(Scene(gpus=1).live().job(10, 2).app(), script, (160, 50))
