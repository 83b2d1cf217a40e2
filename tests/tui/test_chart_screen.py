"""The chart screen: charts to begin with, finding more, zoom and crosshair by keys and mouse, iterations,
another run beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from textual.events import MouseScrollUp

from hoptui.client.replay import Replay
from hoptui.protocol.messages import Event
from hoptui.tui.charts.grid import Extent
from hoptui.tui.dialogs import Finder, Option, matches
from hoptui.tui.replay_app import ReplayApp
from hoptui.tui.screens.charts import content
from hoptui.tui.screens.charts.screen import ChartScreen
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.widgets import Panel
from tests.golden import Golden, sheet
from tests.model.recorded_run import FIRST, write
from tests.tui.conftest import RUN

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
SECOND = 1_000_000_000
START, WALL = 1_000 * SECOND, 1_780_000_000.0


async def opened(app: Any, pilot: Any) -> ChartScreen:
    """The chart screen, without the finder."""
    await pilot.press("slash")
    await pilot.pause()
    assert isinstance(app.screen, Finder)
    await pilot.press("escape")
    await pilot.pause()
    assert isinstance(app.screen, ChartScreen)
    return app.screen


def titles(app: Any) -> list[str]:
    return [panel.title for panel in app.screen.query(Panel) if panel.display]


def test_the_part_and_the_crosshair_have_room_in_80_columns(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        await pilot.press("x", "left", "left")
        await pilot.pause()
        told = read(app, "span").split()
        assert told[:3] == ["●", "live", "iterations"]
        assert told[told.index("crosshair") + 1] == "1"  # 1 203: the number, and after it the time
        assert told[-1].count(":") == 2

    play(scene(gpus=1).live().app(), script, (80, 24))


def test_in_the_smallest_terminal_what_the_crosshair_tells_is_whole_or_left_out(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        await pilot.press("left", "left")
        await pilot.pause()
        assert read(app, "span").split()[-2:] == ["crosshair", "20:26:29"]
        await pilot.press("x")
        await pilot.pause()
        told = read(app, "span")
        assert told.split()[-3:-1] == ["crosshair", "1"]  # 1 203
        assert told.count("…") == 1, "that of the range"

    play(scene(gpus=1).live().app(), script, (60, 16))


def test_it_begins_with_throughput_learning_and_gpus(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live().history()

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        assert [
            [(pick.source, pick.metric) for pick in chart.picks] for chart in app.screen.board.charts
        ] == [
            [(f"run/{RUN}", "env_steps_per_s")],
            [(f"run/{RUN}", "episode_return")],
            [("gpu/GPU-0", name) for name in ("sm_active", "tensor_active", "dram_active")],
            [("gpu/GPU-0", "power_w")],
        ]
        for i, title in enumerate(titles(app)):
            shown[title] = read(app, f"legend-{i}")
        assert "┆" in read(app, "chart-0")  # the changes of knobs and the events
        assert "20:26" in read(app, "chart-0")
        assert "● live   20:22:31 … 20:26:40" in read(app, "span"), "the run began at 20:22:40"
        assert any("\u2800" < c <= "\u28ff" for c in read(app, "chart-0"))
        await pilot.press("escape")
        assert isinstance(app.screen, RunScreen)
        await opened(app, pilot)
        assert len(titles(app)) == 4  # it is as it was left

    play(there.app(), script)
    golden(sheet(shown))


def test_a_few_letters_find_a_series_for_a_chart_of_its_own_or_for_the_chosen_one(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("slash", *"polos", "enter")
        await pilot.pause()
        assert titles(app)[-1] == "› run · policy loss"
        await pilot.press("slash", *"vloss", "tab")
        await pilot.pause()
        assert titles(app)[-1] == "› run · 2 series"
        assert "policy loss" in read(app, f"legend-{len(titles(app)) - 1}")
        await pilot.press("slash", *"host cpu")
        await pilot.pause()
        assert read(app, "find-list").splitlines()[0].split() == [
            "›",
            "host",
            "·",
            "CPU",
            "%",
            "·",
            "cpu_percent",
        ]
        await pilot.press(*"qqqq")
        shown["qqqq"] = read(app, "find-list")
        await pilot.press("escape", "s")
        assert titles(app)[-2:] == ["› run · policy loss", "run · value loss"]

    play(scene(gpus=1).live().app(), script)
    golden(sheet(shown))


def test_the_best_match_is_first_and_every_word_has_to_match() -> None:
    options = [Option("GPU 0 · memory busy"), Option("GPU 0 · SM active"), Option("run · loss")]
    assert [i for i, _ in matches(options, "")] == [0, 1, 2]
    assert [i for i, _ in matches(options, "gpu act")] == [1]
    assert matches(options, "loss gpu") == []


def test_scattered_letters_count_only_where_no_word_matches() -> None:
    options = [Option("own GPU memory"), Option("throwpower"), Option("GPU 0 · power"), Option("net/powers")]
    assert [i for i, _ in matches(options, "power")] == [2, 3, 1]
    assert [i for i, _ in matches(options, "ogm")] == [0]


def test_the_crosshair_reads_values_where_they_were_and_a_dash_where_none_is_known(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        screen = await opened(app, pilot)
        timeline = screen.board.timeline
        await pilot.press("h")
        assert timeline.cross is not None
        timeline.cross = START - 200 * SECOND
        await pilot.press("l")
        await pilot.pause()
        assert "crosshair 20:23:2" in read(app, "span")
        assert "iteration 1 10" in read(app, "span")
        assert read(app, "legend-0") == "━ env steps per s 489 k (488 k…489 k)"
        assert read(app, "legend-0") != read(app, "legend-1")
        assert all(any("│" in line[8:] for line in read(app, f"chart-{i}").splitlines()) for i in range(4))
        timeline.cross = START - 245 * SECOND  # before the first row
        screen.redraw()
        await pilot.pause()
        assert read(app, "legend-0").rstrip().endswith("–")
        await pilot.press("escape")
        assert timeline.cross is None
        assert isinstance(app.screen, ChartScreen)

    play(there.app(), script)


def test_zoom_pan_freeze_and_all_history(scene: MakeScene, play: Play, read: Read) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        screen = await opened(app, pilot)
        await pilot.press("plus", "plus")
        assert "20:25:37 … 20:26:40" in read(app, "span")
        await pilot.press("H")
        await pilot.pause()
        assert "‖ frozen" in read(app, "span")
        frozen = read(app, "chart-0")
        there.client.ns += 20 * SECOND
        there.rows(20)
        app.tick()
        assert read(app, "chart-0") == frozen
        await pilot.press("G")
        await pilot.pause()
        assert "● live" in read(app, "span")
        assert read(app, "chart-0") != frozen
        await pilot.press("a")
        await pilot.pause()
        assert "● all history   20:22:40 … 20:27:00" in read(app, "span")
        await pilot.press("minus")
        assert screen.board.timeline.mode == "all"

    play(there.app(), script)


def test_the_mouse_points_zooms_and_drags(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        screen = await opened(app, pilot)
        timeline = screen.board.timeline
        await pilot.click("#chart-3", offset=(30, 4))
        await pilot.pause()
        assert screen.board.index == 3
        assert timeline.cross is not None
        assert START - 250 * SECOND < timeline.cross < START - 50 * SECOND
        assert read(app, "chart-0").splitlines()[0][30] == "│"
        run = Extent(START - 240 * SECOND, START, START)
        before = timeline.edges(run)
        chart = screen.query_one("#chart-3")
        await pilot._post_mouse_events([MouseScrollUp], chart, offset=(30, 4), button=0)
        after = timeline.edges(run)
        assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 2, rel=0.01)
        await pilot.mouse_down("#chart-3", offset=(20, 4))
        await pilot.hover("#chart-3", offset=(30, 4))
        await pilot.mouse_up("#chart-3", offset=(30, 4))
        await pilot.pause()
        assert timeline.edges(run)[1] < after[1]
        assert timeline.mode == "frozen"

    play(scene(gpus=1).live().app(), script)


def test_a_logarithmic_axis_one_chart_alone_and_none(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        linear = read(app, "chart-1")
        await pilot.press("j", "y")
        await pilot.pause()
        assert read(app, "chart-1") != linear
        assert read(app, "chart-1").splitlines()[-1].startswith("   log")
        await pilot.press("enter")
        await pilot.pause()
        assert titles(app) == ["› run · episode return"]
        await pilot.press("enter", "d", "d", "d", "d")
        await pilot.pause()
        assert titles(app) == []
        shown["without a chart"] = read(app, "nothing")

    play(scene(gpus=1).live().app(), script)
    golden(sheet(shown))


def test_iterations_on_the_x_axis_show_the_same_part(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        screen = await opened(app, pilot)
        await pilot.press("a", "x")
        await pilot.pause()
        assert "iterations 1 084 … 1 204" in read(app, "span")
        assert read(app, "chart-0").splitlines()[-1].split() == ["1", "100", "1", "150"]
        assert "⠤" in read(app, "chart-3") or "⠉" in read(app, "chart-3")  # a GPU's power, too
        screen.board.timeline.live()
        axis, before = screen.axis(screen.view()), (-282_000, 1_204_000)
        line = content.span_line(screen.view(), screen.board, axis, before, axis.extent([]), None, 80)
        assert "iterations 0 … 1 204" in "".join(span.text for span in line), (
            "there are none before the first"
        )
        await pilot.press("x")
        await pilot.pause()
        assert "20:2" in read(app, "span")
        assert not screen.board.by_step

    play(scene(gpus=1).live().app(), script)


def test_another_recording_lies_beside_from_the_start_and_by_iteration(
    scene: MakeScene, play: Play, read: Read, tmp_path: Path
) -> None:
    recorded = write(tmp_path / "rec01.hoptui")

    async def script(app: Any, pilot: Any) -> None:
        screen = await opened(app, pilot)
        screen.compare(tmp_path / "missing.hoptui")
        assert screen.comparison.companions == []
        assert screen.board.timeline.mode == "live"
        screen.compare(recorded)
        await pilot.pause()
        assert "beside ppo-recorded" in read(app, "identity")
        assert "since the start" in read(app, "span")
        assert "● all history   +0:00 … +9:59" in read(app, "span")
        assert read(app, "legend-0").count("━") == 2
        inks = {span.ink for line in screen.query_one("#chart-0").lines for span in line if span.text.strip()}  # type: ignore[attr-defined]
        assert {"1", "2"} <= inks
        await pilot.press("x")
        await pilot.pause()
        assert "iterations " in read(app, "span")
        assert "since the start" not in read(app, "span")
        await pilot.press("escape")
        assert screen.comparison.companions == []

    play(scene(gpus=1).live().app(), script)


def test_a_run_of_the_same_name_is_called_by_its_id(
    scene: MakeScene, play: Play, read: Read, tmp_path: Path
) -> None:
    recorded = write(tmp_path / "rec01.hoptui")

    async def script(app: Any, pilot: Any) -> None:
        screen = await opened(app, pilot)
        screen.compare(recorded)
        [other] = screen.comparison.companions
        assert other is not None
        own = app.view(screen.run_id).run
        chronicle = other.store.chronicle
        chronicle.state = structs.replace(chronicle.state, name=own.name)
        screen.redraw()
        await pilot.pause()
        assert read(app, "identity").count(own.name) == 1
        assert f"beside {other.run.run}" in read(app, "identity")

    play(scene(gpus=1).live().app(), script)


def test_a_click_on_a_chart_of_the_run_opens_the_charts(scene: MakeScene, play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.click("#speed-chart", offset=(20, 3))
        await pilot.pause()
        assert isinstance(app.screen, ChartScreen)
        assert app.screen.run_id is not None

    play(scene(gpus=1).live().app(), script)


def test_the_charts_of_a_node_are_of_its_gpus_and_its_host(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("slash")
        await pilot.pause()
        await pilot.press(*"power")
        assert "GPU 1 · power" in read(app, "find-list")
        await pilot.press("escape")
        await pilot.pause()
        assert titles(app) == ["› SM active · 2 series", "power · 2 series"]

    play(scene(gpus=2).live().app(run=None), script)


def test_a_recording_has_the_same_charts_as_of_its_position(read: Read, tmp_path: Path) -> None:
    clock = [100.0]
    replay = Replay(write(tmp_path / "rec01.hoptui"), clock=lambda: clock[0])
    app = ReplayApp(replay, clock=lambda: clock[0], frames=False)

    async def main() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            replay.seek(FIRST + 300 * SECOND)
            await opened(app, pilot)
            assert "● at the position" in read(app, "span")
            before = read(app, "legend-0")
            await pilot.press("z")
            await pilot.press("right")  # the position moves on, what is shown does not
            await pilot.pause()
            assert "‖ frozen" in read(app, "span")
            await pilot.press("z")
            await pilot.pause()
            assert read(app, "legend-0") != before

    asyncio.run(main())


def test_a_small_terminal_has_four_small_charts(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()
    there.tell(
        events=(Event(seq=9, t=START - 9 * SECOND, wall=WALL - 9, kind="x", text="slow", level="alarm"),)
    )

    async def script(app: Any, pilot: Any) -> None:
        await opened(app, pilot)
        shown["title"] = read(app, "identity")
        assert len(titles(app)) == 4
        assert read(app, "legend-2").count("━") == 3
        inks = {span.ink for line in app.screen.query_one("#chart-3").lines for span in line}
        assert "bad" in inks

    play(there.app(), script, (80, 24))
    golden(sheet(shown))
