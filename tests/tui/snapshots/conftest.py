"""What a state looks like, compared with its golden file: at three sizes and in two themes, from one app that
stands still."""

from __future__ import annotations

import asyncio
import difflib
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual._compositor import LayoutUpdate
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Input

from hoptui.model import store
from hoptui.tui import hosts_app, render_loop
from hoptui.tui.app import HoptuiApp
from hoptui.tui.app_protocol import StoreChanged
from tests.tui.conftest import WALL
from tests.tui.snapshots import picture

GOLDEN = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 40), (200, 50))
THEMES = ("dark", "light")
FRAMES = 8  # a screen that has not come to rest after so many never will
SHOWN = 60  # lines of a difference

Step = str | Callable[[HoptuiApp], object]
"""A key as Textual names it, or something that happens to the app; what is awaitable is awaited."""
Snapshot = Callable[..., None]
Golden = Callable[[str], None]
Drawn = dict[tuple[int, int], dict[str, list[Strip]]]
"""The rows of a screen, by its size and the theme."""


@pytest.fixture(autouse=True)
def one_time_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock of the scene, also where no node has told its own."""
    for module in (render_loop, hosts_app, store):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: WALL))


@pytest.fixture(autouse=True, scope="module")
def nothing_in_vain() -> Iterator[None]:
    """What takes most of the time, and is seen in no picture.

    That is what Textual writes between two of them, and the search for garbage in what all the tests before
    have imported.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Screen, "_compositor_refresh", lambda screen: None)
        gc.freeze()
        yield
        gc.unfreeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(text)`: compare a text with the golden file of the test's name."""

    def compare(now: str) -> None:
        update = request.config.getoption("update_snapshots")
        check(golden_file(request.function.__name__), now, update=update)

    return compare


@pytest.fixture
def snapshot(request: pytest.FixtureRequest, golden: Golden) -> Snapshot:
    """`snapshot(app, *steps)`: take the steps, and compare the screen with the golden file of the test.

    `sizes` and `themes` may be others. The steps are taken at the first size. The first theme is the one that
    the app has; the golden file has its styles. The other themes must have the same text, and a name for each
    style that has one. A function that makes the app of a theme is for what cannot change its theme while it
    is open.
    """

    def compare(
        app: HoptuiApp | Callable[[str], HoptuiApp],
        *steps: Step,
        sizes: Sequence[tuple[int, int]] = SIZES,
        themes: Sequence[str] = THEMES,
    ) -> None:
        drawn: Drawn = {size: {} for size in sizes}
        if isinstance(app, HoptuiApp):
            asyncio.run(take(drawn, app, steps, themes))
        else:
            for theme in themes:
                asyncio.run(take(drawn, app(theme), steps, [theme]))
        views = [picture.view(size, list(looks), list(looks.values())) for size, looks in drawn.items()]
        title = " ".join((request.function.__doc__ or "").split())
        golden(picture.text(title, themes[0], views))

    return compare


def check(file: Path, now: str, *, update: bool) -> None:
    """Fail where a picture is not what its golden file says; `update` writes the file instead."""
    if update:
        file.write_text(now)
    elif not file.exists():
        pytest.fail(f"there is no {file.name}: pytest --update-snapshots writes it", pytrace=False)
    elif (before := file.read_text()) != now:
        keeps = "it looks different (pytest --update-snapshots keeps that)"
        pytest.fail(f"{keeps}:\n{difference(before, now)}", pytrace=False)


def golden_file(test: str) -> Path:
    """Where the golden file of a test is, by the test's name."""
    return GOLDEN / f"{test.removeprefix('test_')}.txt"


def difference(before: str, now: str) -> str:
    """What changed, as far as it is short enough to be read."""
    lines = list(
        difflib.unified_diff(before.splitlines(), now.splitlines(), "golden", "now", n=1, lineterm="")
    )
    rest = [f"… and {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else []
    return "\n".join(lines[:SHOWN] + rest)


async def take(drawn: Drawn, app: HoptuiApp, steps: Sequence[Step], themes: Sequence[str]) -> None:
    """Fill in the screen after the steps, which are taken at the first size, at each size.

    Only the size whose styles are written is drawn in each theme: to change the theme costs as much as the
    rest. The others are drawn in the theme that is there.
    """
    app.animation_level = "none"
    styled = picture.styled(list(drawn))
    theme = themes[0]
    async with app.run_test(size=next(iter(drawn))) as pilot:
        app.post_message(StoreChanged("node"))
        await pilot.pause()
        for step in steps:
            await _take(step, app, pilot)
        for size, looks in drawn.items():
            if app.size != size:
                await pilot.resize_terminal(*size)
                app._check_resize()  # Textual would wait a moment for another size
            await _come_to_rest(app, pilot)
            looks[theme] = seen(app)
            if size == styled:
                for theme in themes[1:]:
                    app.theme = f"hoptui-{theme}"
                    await pilot.pause()
                    looks[theme] = seen(app)


async def _take(step: Step, app: HoptuiApp, pilot: Pilot[Any]) -> None:
    if isinstance(step, str):
        await pilot.press(step)
    else:
        done = step(app)
        if isinstance(done, Awaitable):
            await done
    await pilot.pause()


async def _come_to_rest(app: HoptuiApp, pilot: Pilot[Any]) -> None:
    """Let the app draw until nothing changes any more. The cursor of an input does not blink."""
    before: object = None
    for _ in range(FRAMES):
        app.post_message(StoreChanged("node"))
        await pilot.pause()
        for entry in app.screen.query(Input):
            entry.cursor_blink = False
        now = [
            (w.region, w.border_title, w.border_subtitle, getattr(w, "lines", None))
            for screen in app.screen_stack
            for w in screen.query("*")
        ]
        if now == before:
            return
        before = now
    pytest.fail("the screen does not come to rest")


def seen(app: HoptuiApp) -> list[Strip]:
    """The rows of the screen, with what shows through a box: what Textual draws a screenshot of."""
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    assert isinstance(update, LayoutUpdate)
    return [Strip.join(list(row)) for row in update.strips]
