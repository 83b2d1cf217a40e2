"""The hints of the demo: one at a time, over by their key or their time, and in no other dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from hoptui.cli.commands import demo
from hoptui.cli.support.recordings import example
from hoptui.client.replay import Replay
from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.model.runs import StartingRun
from hoptui.settings import Config
from hoptui.tui.app import HoptuiApp
from hoptui.tui.components.hints import (
    ENOUGH,
    FEWEST,
    FEWEST_S,
    HINT_S,
    HINTS,
    PERIOD_S,
    RECORDING,
    STARTING,
    Hints,
)
from hoptui.tui.guided_app import GuidedApp, GuidedReplay
from hoptui.tui.widgets import Lines
from hoptui.tuner.effect import BLOCK, MIN_BLOCKS
from tests.model.recorded_run import write
from tests.tui.conftest import RUN, SECOND, Scene

ADVISED = Diagnosis(
    verdict="memory-unused", confidence=0.8, advice=(Advice(knob="grad_accum", direction="down", value=1),)
)
SIZES = [(80, 24), (120, 40)]
Script = Callable[[GuidedApp, Pilot[None]], Awaitable[None]]


class Clock:
    """Seconds that stand still until a test moves them; the clock of the store moves with them."""

    def __init__(self, made: Scene | None = None) -> None:
        self.s = 0.0
        self._made = made

    def __call__(self) -> float:
        return self.s

    def move(self) -> None:
        """Let a second pass."""
        self.s += 1.0
        if self._made is not None:
            self._made.client.ns += SECOND


def scene(diagnosis: Diagnosis | None = ADVISED, *, connected: bool = True) -> Scene:
    made = Scene()
    made.run = msgspec.structs.replace(made.run, diagnosis=diagnosis)
    made.node = msgspec.structs.replace(made.node, runs=(made.run,))
    return made.live() if connected else without_runs(made)


def without_runs(made: Scene) -> Scene:
    """Connect to a node that does not know the run yet."""
    known, made.node = made.node, msgspec.structs.replace(made.node, runs=())
    made.live(history=False).node = known
    return made


def follow(
    app: HoptuiApp, script: Callable[[Any, Pilot[None]], Awaitable[None]], size: tuple[int, int]
) -> None:
    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(main())


def guided(made: Scene, clock: Clock, starting: StartingRun | None = None, asked: str = RUN) -> GuidedApp:
    def connect(on_change: Callable[[Any], None]) -> Any:
        made.client.on_change = on_change
        return made.client

    config = Config.of(theme="dark")
    return GuidedApp(connect, asked, config=config, clock=clock, frames=False, starting=starting)


def shown(app: HoptuiApp) -> str:
    """The hint on the screen, empty without one."""
    return "".join(lines.text.strip() for lines in app.screen.query("#hints").results(Lines) if lines.display)


async def wait(app: HoptuiApp, pilot: Pilot[None], clock: Clock, seconds: float) -> None:
    """Let time pass second by second, with a frame each."""
    for _ in range(round(seconds)):
        clock.move()
        app.tick()
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES)
def test_each_hint_is_over_when_its_key_is_pressed(size: tuple[int, int]) -> None:
    made = scene()
    clock = Clock(made)

    async def script(app: GuidedApp, pilot: Pilot[None]) -> None:
        assert shown(app) == "› o applies what the verdict advises"
        await pilot.press("o")
        assert [(c.knob, c.value) for c in made.client.sent] == [("grad_accum", 1)]
        assert shown(app) == "› w shows the lines of code that take the time"
        await pilot.press("w", "w")
        assert shown(app) == "› t opens the tuner, which tries settings by itself; s starts it"
        await pilot.press("t", "escape")
        assert shown(app) == "› q leaves; it asks whether the run goes on"

    follow(guided(made, clock), script, size)


def test_each_hint_is_over_after_its_time_and_all_are_after_two_minutes() -> None:
    made = scene()
    clock = Clock(made)

    async def script(app: GuidedApp, pilot: Pilot[None]) -> None:
        seen = []
        for _ in filter(lambda hint: hint.live, HINTS):
            seen.append(shown(app).removeprefix("› ")[0])
            await wait(app, pilot, clock, HINT_S)
        assert seen == ["o", "w", "t", "q"]
        assert clock.s == PERIOD_S
        assert shown(app) == ""
        (line,) = app.screen.query("#hints")
        assert not line.display, "its line is free for the rest of the screen"

    follow(guided(made, clock), script, (80, 24))


def test_what_is_not_advised_yet_is_not_hinted_at() -> None:
    made = scene(None)
    clock = Clock(made)

    async def script(app: GuidedApp, pilot: Pilot[None]) -> None:
        assert shown(app).startswith("› w ")
        made.update(run={"diagnosis": ADVISED})
        await wait(app, pilot, clock, 1)
        assert shown(app).startswith("› o ")

    follow(guided(made, clock), script, (80, 24))


def test_advice_waits_until_its_effect_can_be_measured() -> None:
    made = scene()
    made.update(vital={"step": ENOUGH - 1, "iteration_s": 0.1})
    clock = Clock(made)

    async def script(app: GuidedApp, pilot: Pilot[None]) -> None:
        assert shown(app).startswith("› w ")
        made.update(vital={"step": ENOUGH, "iteration_s": 0.1})
        await wait(app, pilot, clock, 1)
        assert shown(app).startswith("› o ")

    follow(guided(made, clock), script, (80, 24))


def test_advice_waits_for_fewer_iterations_if_each_takes_long() -> None:
    made = scene()
    made.update(vital={"step": FEWEST, "iteration_s": 0.9 * FEWEST_S / FEWEST})
    clock = Clock(made)

    async def script(app: GuidedApp, pilot: Pilot[None]) -> None:
        assert shown(app).startswith("› w ")
        made.update(vital={"step": FEWEST, "iteration_s": FEWEST_S / FEWEST})
        await wait(app, pilot, clock, 1)
        assert shown(app).startswith("› o ")

    follow(guided(made, clock), script, (80, 24))
    assert ENOUGH > FEWEST > BLOCK * MIN_BLOCKS


def test_a_hint_names_the_key_that_the_user_has_chosen() -> None:
    view = guided(scene(), Clock()).view(RUN)
    keymap = {**view.keymap, "knob.advice": "f9", "view.where": ""}
    hints = Hints()
    line = hints.line(view._replace(keymap=keymap), 0.0, 80)
    assert line is not None
    assert line[1].text == "f9 applies what the verdict advises"
    hints.did("advice")
    line = hints.line(view._replace(keymap=keymap), 1.0, 80)
    assert line is not None
    assert line[1].text.startswith("t opens the tuner"), "a hint without a key is left out"


@pytest.mark.parametrize("size", SIZES)
def test_the_dashboard_is_there_before_the_run_which_it_finds_by_its_pid(size: tuple[int, int]) -> None:
    made = scene(connected=False)
    node, pid = made.node, made.run.pid
    clock = Clock(made)
    starting = StartingRun(pid, lambda: False)

    async def script(app: GuidedApp, pilot: Pilot[None]) -> None:
        assert shown(app) == f"{STARTING}, 0 s so far"
        await wait(app, pilot, clock, 3)
        assert shown(app) == f"{STARTING}, 3 s so far"
        made.node = msgspec.structs.replace(node, runs=(msgspec.structs.replace(made.run, pid=pid + 1),))
        made.live()
        await wait(app, pilot, clock, 1)
        assert starting.state is None, "that is another run of the same name"
        made.node = node
        made.live()
        await wait(app, pilot, clock, 1)
        assert starting.state == made.run
        assert shown(app) == "› o applies what the verdict advises"

    follow(guided(made, clock, starting, "another name"), script, size)


def test_the_dashboard_closes_if_the_process_ends_before_it_connects() -> None:
    made = scene(connected=False)
    clock = Clock(made)
    ended = [False]
    app = guided(made, clock, StartingRun(7, lambda: ended[0]))

    async def script(app: GuidedApp, pilot: Pilot[None]) -> None:
        await wait(app, pilot, clock, 1)
        assert app.is_running
        ended[0] = True
        await wait(app, pilot, clock, 1)

    follow(app, script, (80, 24))
    assert app.return_code == 1


def test_other_dashboards_have_no_hints() -> None:
    made = scene()
    app = HoptuiApp(lambda on_change: made.client, RUN, config=Config.of(theme="dark"), frames=False)

    async def script(app: HoptuiApp, pilot: Pilot[None]) -> None:
        assert not app.screen.query("#hints")

    follow(app, script, (80, 24))


def test_in_the_recording_of_the_demo_each_hint_comes_once_its_key_has_something_to_show() -> None:
    clock = Clock()
    replay = Replay(example(demo.RECORDED), clock=clock)
    app = GuidedReplay(
        replay, hints=Hints("a run"), config=Config.of(theme="dark"), clock=clock, frames=False
    )
    said: dict[str, float] = {}

    async def script(app: GuidedReplay, pilot: Pilot[None]) -> None:
        for second in range(0, round(PERIOD_S), 4):
            await wait(app, pilot, clock, 4)
            _, _, hint = shown(app).partition("nothing trains here")
            said.setdefault(hint.strip(), second)

    follow(app, script, (120, 40))
    assert list(said) == [
        "w shows the lines that took the time",
        "",
        "h shows what each change did",
        "t shows what the tuner tried",
        "q leaves",
    ]
    assert 36 <= said["h shows what each change did"] <= 44, "compile takes effect after 38 s"


@pytest.mark.parametrize("size", SIZES)
def test_a_recording_says_that_it_is_one_as_long_as_it_is_open(size: tuple[int, int], tmp_path: Path) -> None:
    clock = Clock()
    replay = Replay(write(tmp_path / "run.hoptui"), clock=clock)
    app = GuidedReplay(
        replay, hints=Hints("a run on an H200"), config=Config.of(theme="dark"), clock=clock, frames=False
    )

    async def script(app: GuidedReplay, pilot: Pilot[None]) -> None:
        assert shown(app).startswith(RECORDING)
        assert "w shows the lines that took the time" in shown(app)
        await wait(app, pilot, clock, PERIOD_S + 1)
        assert shown(app) == "This is a recording of a run on an H200: nothing trains here"

    follow(app, script, size)
