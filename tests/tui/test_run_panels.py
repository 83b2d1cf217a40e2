"""What the run screen makes of its room: the verdict, the panel that stays alone, the charts, and what lies
under a question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.color import Color

from hoptui.client.client import Link
from hoptui.domain.columns import pack
from hoptui.tui import preferences
from hoptui.tui.app_protocol import EVERYTHING
from hoptui.tui.components import events, gpus, header
from hoptui.tui.screens.run import content
from hoptui.tui.styled_text import Line, width_of
from hoptui.tui.widgets import Lines, Panel
from tests import factories
from tests.golden import Golden, sheet
from tests.tui.conftest import RUN
from tests.tui.tuned_run import STATE, tuned

PANELS = ("throughput", "learning", "hardware", "phases", "knobs", "events", "tuner")
MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
READABLE = 3.0  # a contrast (WCAG) at which large or secondary text is read


async def settled(app: Any, pilot: Any) -> None:
    """Twice: what is drawn may give the widgets other sizes."""
    for _ in range(2):
        app._draw(EVERYTHING)
        await pilot.pause()


def test_the_verdict_survives_the_smallest_layout_beside_a_knob(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        await settled(app, pilot)
        shown["60 × 16"] = read(app, "verdict")
        assert read(app, "knob-list").startswith("› num_envs")
        assert "host CPU" not in read(app, "summary"), "it is worth less"
        await pilot.resize_terminal(59, 15)
        await settled(app, pilot)
        shown["59 × 15"] = read(app, "numbers")

    play(scene(gpus=1).live().history().app(), script, (60, 16))
    golden(sheet(shown))


def test_the_verdict_of_a_run_that_does_not_answer_is_dimmed_with_its_age(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}
    there = scene(gpus=1).live()
    there.client.ns += 42_000_000_000
    there.update(vital={"state": "unresponsive", "pulse_age_s": 42.0})

    async def script(app: Any, pilot: Any) -> None:
        shown["42 s later"] = read(app, "verdict")
        assert app.screen.query_one("#verdict", Lines).faded
        assert read(app, "phase-lines").startswith("rollout"), "it has not forgotten them"

    play(there.app(), script)
    golden(sheet(shown))


def test_a_panel_shown_alone_has_its_chart(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("4")
        await settled(app, pilot)
        assert not app.screen.query_one("#throughput", Panel).region.area
        assert "100┤" in read(app, "phase-chart")
        assert "rollout" in str(app.screen.query_one("#phases", Panel).border_subtitle)
        assert "esc all panels" in read(app, "keys")
        await pilot.press("escape")
        await settled(app, pilot)
        assert app.screen.query_one("#throughput", Panel).region.area
        assert read(app, "phase-chart") == "", "there is no room for it"
        assert app.screen.query_one("#phases", Panel).border_subtitle == "w all lines", "no legend"
        await pilot.resize_terminal(120, 52)
        await settled(app, pilot)
        assert "100┤" in read(app, "phase-chart")

    play(scene(gpus=1).live().app(), script)


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 20)])
def test_a_small_terminal_has_room_for_one_panel_alone(
    scene: MakeScene, play: Play, read: Read, size: tuple[int, int]
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        panels = {panel.id: panel for panel in app.screen.query(Panel)}
        for key, name in enumerate(PANELS, start=1):
            await pilot.press("tab", str(key))
            await settled(app, pilot)
            assert [one for one, panel in panels.items() if panel.region.area] == [name]
            assert panels[name].region.height == app.screen.query_one("#body").size.height
            assert "esc all panels" in read(app, "keys")
            assert "knobs/events" not in read(app, "keys")
            await pilot.press(str(key), "tab")
            await settled(app, pilot)
            assert "compact" in {one for one, panel in panels.items() if panel.region.area}
        await pilot.press("5")
        await settled(app, pilot)
        assert "clip_range" in read(app, "knob-list"), "what is told of one leaves room for others"
        await pilot.press("4")
        await settled(app, pilot)
        assert "100┤" in read(app, "phase-chart")
        assert "…" not in str(panels["phases"].border_title)

    play(scene(gpus=1).live().history().app(), script, size)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_panel_shown_alone_while_all_stands_still_is_drawn(
    scene: MakeScene, play: Play, read: Read, size: tuple[int, int]
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await settled(app, pilot)
        app.client.ns += 60_000_000_000  # the frame in which it was resized is long ago
        await pilot.press("space", "4")
        await settled(app, pilot)
        assert "100┤" in read(app, "phase-chart")
        assert "view frozen" in read(app, "identity") or size[0] < 100

    play(scene(gpus=1).live().app(), script, size)


def test_where_only_the_key_numbers_have_room_no_panel_is_shown_alone(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("1")
        await settled(app, pilot)
        assert not app.screen.alone
        assert "iteration" in read(app, "numbers")

    play(scene(gpus=1).live().app(), script, (59, 15))


def test_where_there_is_no_room_for_the_hardware_chart_its_legend_goes_and_the_host_stays(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        hardware = app.screen.query_one("#hardware", Panel)
        await settled(app, pilot)
        assert not hardware.border_subtitle
        assert "power cap" in read(app, "readings")
        assert read(app, "host").startswith("host CPU")
        await pilot.resize_terminal(120, 40)
        await settled(app, pilot)
        assert "SM %" in str(hardware.border_subtitle)

    play(scene(gpus=1).live().app(), script, (100, 32))


def test_a_question_is_wrapped_anew_where_the_terminal_gets_narrower(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("s")
        await pilot.pause()
        wide = read(app, "question").splitlines()
        await pilot.resize_terminal(40, 30)
        await settled(app, pilot)
        narrow = read(app, "question").splitlines()
        assert len(narrow) > len(wide)
        assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(wide).split())

    play(scene(gpus=1).live().app(), script)


def test_what_was_dimmed_already_is_still_read_under_a_question(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()
    there.update(vital={"state": "unresponsive", "pulse_age_s": 12.0})

    async def script(app: Any, pilot: Any) -> None:
        speed = app.screen.query_one("#speed", Lines)

        def ink() -> Color:
            return Color.from_rich_color(speed.render_line(0)._segments[0].style.color)

        for theme in (preferences.DARK, preferences.LIGHT):
            app.theme = theme.name
            await pilot.pause()
            faded = ink()
            assert faded == Color.parse(theme.variables["ink-stale"])
            await pilot.press("s")
            await pilot.pause()
            veil = app.screen.styles.background
            assert 0 < veil.a < 1
            ground = Color.parse(theme.background)
            assert contrast(ink().blend(ground, veil.a), ground) >= READABLE
            assert contrast(faded.blend(ground, veil.a), ground) < READABLE, "dimmed twice it would not be"
            assert contrast(ink(), ground) < contrast(Color.parse(theme.foreground), ground), (
                "and is not as if it were new"
            )
            await pilot.press("n")
            await pilot.pause()
            assert ink() == faded

    play(there.app(), script)


def test_a_banner_keeps_what_matters_where_it_does_not_fit(scene: MakeScene, golden: Golden) -> None:
    lost, hot, over = (scene(gpus=1).live() for _ in range(3))
    lost.client.link = Link("lost", 88.0, "the daemon (pid 77) does not answer")
    hot.gpu(throttle=float(0x40), busy=90.0)
    killed = {"exit_reason": "killed: its process ended without a word", "exited_wall": 1_780_000_000.0}
    over.update(vital={"state": "exited"}, run=killed)
    shown = {}
    for what, there, widths in (
        ("a lost link", lost, (120, 78)),
        ("a hot GPU", hot, (200, 78)),
        ("a killed run", over, (120, 78)),
    ):
        view = there.app().view(RUN)
        for width in widths:
            line = header.progress(view, width)
            assert width_of(line) <= width
            shown[f"{what}, {width} columns"] = said(line)
    golden(sheet(shown))


def test_how_a_paused_run_goes_on_is_told_where_why_it_is_paused_has_no_room(
    scene: MakeScene, golden: Golden
) -> None:
    there = scene(gpus=1).live()
    there.update(vital={"state": "paused", "paused_left_s": 57.0})
    view = there.app().view(RUN)
    golden(sheet({f"{width} columns": said(header.progress(view, width)) for width in (120, 78)}))


def test_a_change_whose_effect_was_not_measured_is_named(scene: MakeScene, golden: Golden) -> None:
    there = scene(gpus=1).live()
    view = there.app().view
    assert events.last_change(view(RUN), 80) == ()
    there.history().record(id="x", ago_s=10.0, knob="lr", before=3e-4, wanted=1e-4, effective=1e-4)
    shown = {"live": said(events.last_change(view(RUN), 80))}
    there.update(vital={"state": "exited"})
    shown["exited"] = said(events.last_change(view(RUN), 80))
    golden(sheet(shown))


def test_a_gpu_without_current_readings_says_so_in_its_line(scene: MakeScene, golden: Golden) -> None:
    there = scene(gpus=1).live()
    there.client.ns += 60_000_000_000
    line = gpus.short(there.app().view(RUN), there.gpus[0], 76)
    golden([said(line)])


def test_while_connecting_a_small_terminal_says_so_once_in_a_box(scene: MakeScene, golden: Golden) -> None:
    lines = content.compact_summary(scene().app().view(None), "", 76, 300.0, plain=False)
    golden(map(said, lines))


def test_small_charts_of_values_over_many_powers_of_ten_are_logarithmic(scene: MakeScene) -> None:
    there = scene().live(history=False)
    first = there.client.ns - 300 * 10**9
    rows = [
        (
            first + i * 10**9,
            i,
            {"loss": 10.0 ** (1 - i * 9 / 300), "env_steps_per_s": 50.0 + i % 3 + 9e3 * (i == 9)},
        )
        for i in range(301)
    ]
    there.tell(columns=(pack(f"run/{RUN}", rows),))
    lines = content.compact_summary(there.app().view(RUN), "loss", 76, 300.0, plain=False)
    speed, _, loss, below = map(said, lines[:4])
    assert "loss · log" in loss
    assert "log" not in speed
    across = 28
    assert 11 <= len(loss[-across:].rstrip()) <= 14, (
        "it falls evenly: from 10 to 1e-3 in less than half the time"
    )
    assert len(below[-across:].strip()) > 14
    assert sum(not c.isspace() for c in speed[-across:]) > across / 2, "a spike does not flatten the level"


def said(line: Line) -> str:
    return "".join(span.text for span in line)


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(color: Color) -> float:
        parts = (part / 255 for part in color.rgb)
        linear = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("tuner", [False, True])
@pytest.mark.parametrize("count", [1, 5, 20])
@pytest.mark.parametrize("size", [(80, 24), (100, 30), (100, 32), (120, 34), (120, 40), (200, 50)])
def test_the_knobs_have_more_than_half_of_their_panel(
    play: Play, size: tuple[int, int], count: int, tuner: bool
) -> None:
    there = tuned(STATE if tuner else None)
    declared = (factories.knob(f"knob_{i}", i, min=0, max=100) for i in range(count))
    there.update(run={"knobs": tuple(declared)})

    async def script(app: Any, pilot: Any) -> None:
        await settled(app, pilot)
        panel = app.screen.query_one("#knobs", Panel).content_size.height
        shown = app.screen.query_one("#knob-list", Lines).size.height
        assert shown >= min(count, panel * 3 // 5)

    play(there.app(), script, size)
