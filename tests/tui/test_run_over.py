"""A run that is over: its figures and curves stay what they were at its end, and nothing is promised any
more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.columns import pack
from hoptui.tui.components import runs, tuner
from hoptui.tui.screens.run import content
from hoptui.tui.screens.run.panels import TimeSpan
from hoptui.tui.snapshot import View
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
SECOND = 1_000_000_000
EXITED = {"vital": {"state": "exited"}, "run": {"exit_reason": "finished"}}


@pytest.fixture
def over(scene: MakeScene) -> Any:
    """A run that has just ended."""
    there = scene(gpus=1).live()
    there.update(**EXITED)
    return there


def view_of(there: Any) -> View:
    view: View = there.app().view(there.run.run)
    return view


def text(lines: list[Any]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


def test_figures_stay(over: Any, play: Play, read: Read) -> None:
    """Their window ended with the run: with one that ends now they were of ever fewer, ever wider buckets."""

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        before = read(app, "speed"), read(app, "phase-lines")
        for hours in (1, 10, 100):
            over.client.ns += hours * 3600 * SECOND
            app.tick()
            assert (read(app, "speed"), read(app, "phase-lines")) == before

    play(over.app(), script)


def test_its_speed_is_that_of_its_last_seconds_and_not_of_its_last_iteration(over: Any) -> None:
    rows = [
        (over.client.ns + i * SECOND // 2, 2000 + i, {"env_steps_per_s": v})
        for i, v in enumerate((600e3, 600e3, 600e3, 0.0))
    ]
    over.tell(columns=(pack(f"run/{over.run.run}", rows),))
    over.client.ns += 60 * SECOND
    assert runs.headline_rate(view_of(over))[0].text == "450 k"


def test_small_charts_end_with_it(over: Any) -> None:
    def drawn() -> list[str]:
        view = view_of(over)
        stretch = TimeSpan.of(view, 300.0)
        return text(
            content.compact_summary(view, "episode_return", 76, stretch.span_s, end=stretch.end, plain=False)
        )[:4]

    over.update(vital={"last_t": over.client.ns}, run={"exited_wall": view_of(over).wall})
    before = drawn()
    over.client.ns += 3600 * SECOND
    assert drawn() == before


def test_its_charts_are_as_long_as_it_was(over: Any) -> None:
    began = view_of(over).run.started_wall  # type: ignore[union-attr]
    over.update(run={"exited_wall": began + 25.0})
    over.client.ns += 3600 * SECOND
    stretch = TimeSpan.of(view_of(over), 300.0)
    assert 25.0 <= stretch.span_s <= 25.0 / 0.9
    assert stretch.machine_s == 300.0


def test_its_charts_begin_with_it_if_its_process_lived_on_without_a_row(over: Any) -> None:
    began = view_of(over).run.started_wall  # type: ignore[union-attr]
    last = over.client.ns
    lasted_s = view_of(over).wall - began
    over.update(vital={"last_t": last}, run={"exited_wall": began + lasted_s + 60.0})
    over.client.ns += 120 * SECOND
    stretch = TimeSpan.of(view_of(over), 1e6)
    assert stretch.end == last
    assert lasted_s <= stretch.span_s <= lasted_s / 0.89


def test_nothing_is_promised_any_more(scene: MakeScene, golden: Golden) -> None:
    there = scene().live()
    shown = {}
    for state, changes in (("live", {}), ("exited", EXITED)):
        there.update(**changes)
        view = view_of(there)
        shown[f"{state}: throughput"] = text(runs.throughput_lines(view, 60))[1:2]
        shown[f"{state}: tuner"] = text(tuner.short(view, 80))
    golden(sheet(shown))
