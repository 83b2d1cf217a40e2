"""Before there is anything to see: every box says why it is empty, in the daemon's own words, and what to
do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.client.client import Link
from hoptui.domain.facts import fact
from hoptui.tui.components import events, figures, gpus, header, host, knobs, phases, runs
from hoptui.tui.screens.run import content
from hoptui.tui.snapshot import View
from hoptui.tui.widgets import Lines
from tests.golden import Golden, sheet
from tests.tui.conftest import NO_DRIVER, RUN, rendered

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
CANNOT = "the daemon could not be started: /tmp/hoptui-1000 is full"


def look(there: Any, run: str | None = None) -> View:
    return there.app(run=None).view(run)  # type: ignore[no-any-return]


def text(lines: Any) -> str:
    return "\n".join("".join(span.text for span in line) for line in lines)


def test_without_a_node_every_panel_says_what_is_the_matter(scene: MakeScene, golden: Golden) -> None:
    there = scene()
    shown = {}
    for link in (
        Link("connecting", 0.0),
        Link("connecting", 0.0, "no daemon is running"),
        Link("failed", 0.0, CANNOT),
        Link("failed", 0.0),
        Link("lost", 0.0, "gone"),
    ):
        there.client.link = link
        view = look(there)
        reason, short = figures.missing_reason(view), gpus.none(view)
        shown[f"{link.state}: {link.reason or '–'}"] = (f"a large panel: {reason}", f"a small one: {short}")
        assert link.reason in reason
        assert text(runs.rows(view, 80, -1)).splitlines()[0] == reason
        for whole in (
            content.compact_summary(view, "", 100, 60.0, plain=False),
            phases.lines(view, phases.measured(view), 100, 5),
        ):
            assert text(whole) == reason
        for lines in (
            host.process_rows(view, 80, -1)[:1],
            events.lines(view, 5, 60),
            knobs.rows(view, 60, 0),
            runs.learning_lines(view, "", 60)[:1],
        ):
            assert text(lines).strip() == short
    golden(sheet(shown))


def test_a_daemon_that_cannot_be_started_is_told_with_what_to_do(scene: MakeScene) -> None:
    there = scene()
    there.client.link = Link("failed", 0.0, CANNOT)
    view = look(there)
    banner = header.banner(view)
    assert banner is not None
    assert (banner.symbol, banner.text) == ("✕", CANNOT)
    assert "hoptui doctor" in text(runs.rows(view, 80, -1))
    there.client.link = Link("failed", 0.0, "gpu07 refuses the login", node="gpu07")
    told = text(runs.rows(look(there), 80, -1))
    assert "refuses the login" in told
    assert "hoptui doctor" not in told, "it would look at this node"


def test_a_long_reason_is_told_whole_where_there_is_room(scene: MakeScene, play: Play, read: Read) -> None:
    why = f"/tmp/{'x' * 90}/viewers.sock is 108 bytes long: set HOPTUI_DIR to a shorter directory"
    there = scene()
    there.client.link = Link("failed", 0.0, why)

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        told = read(app, "run-list")
        assert "".join(told.split()).startswith("".join(why.split()))
        assert app.screen.query_one("#run-list").size.height == len(told.splitlines())

    play(there.app(run=None), script, (80, 24))


def test_a_node_without_gpus_and_runs_says_why_and_how_to_begin(scene: MakeScene, golden: Golden) -> None:
    view = look(scene(runs=False).live(history=False))
    assert figures.missing_reason(view) == ""
    assert gpus.none(view) == NO_DRIVER
    assert text(gpus.absent(view, 40)).split() == gpus.none(view).split()
    assert len(gpus.absent(view, 40)) == 2
    shown = {"runs": runs.rows(view, 80, -1), "processes": host.process_rows(view, 80, -1)}
    golden(sheet({panel: rendered(lines, 80) for panel, lines in shown.items()}))


def test_a_run_that_has_said_nothing_yet(scene: MakeScene, golden: Golden) -> None:
    there = scene().live(history=False)
    there.update(run={"knobs": ()})
    view = look(there, "3f2a9c10")
    shown = {
        "learning": runs.learning_lines(view, "", 60),
        "phases": phases.lines(view, phases.measured(view), 60, 5),
        "knobs": knobs.rows(view, 60, 0),
    }
    golden(sheet({panel: text(lines) for panel, lines in shown.items()}))


def test_who_is_on_a_gpu_is_never_nobody_where_it_is_unknown(scene: MakeScene, golden: Golden) -> None:
    there = scene(gpus=1).live(history=False)
    there.tell(
        node=msgspec.structs.replace(
            there.node, sampler_problems=(fact("recorded", text="the sampler ended (exit code 1)"),)
        )
    )
    golden([text(host.process_rows(look(there), 80, -1))])


def test_memory_that_nobody_holds_is_somebodys_in_another_container(scene: MakeScene, golden: Golden) -> None:
    there = scene(gpus=2).live()
    shown = {
        "58.1 GiB in use": text(host.process_rows(look(there), 80, -1)),
        "58.1 GiB in use on GPU 1": text(host.process_lines(look(there), 60, 3, "GPU-1")),
    }
    for index in (0, 1):
        there.gpu(index, memory_used_bytes=float(3 << 20))
    shown["3 MiB in use"] = text(host.process_rows(look(there), 80, -1))
    golden(sheet(shown))


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_readings_of_a_gpu_that_is_not_there_leave_no_box_empty(
    scene: MakeScene, play: Play, size: tuple[int, int]
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        app.open_gpus("GPU-0")
        await pilot.pause()
        app.tick()
        await pilot.pause()
        assert boxes_without_a_word(app) == []

    play(scene(runs=False).live().app(run=None), script, size)


def boxes_without_a_word(app: Any) -> list[str]:
    """The panels on screen in which nothing is said."""
    boxes = [box for box in app.screen.query(".panel") if box.size.height and box.is_on_screen]
    return [box.id for box in boxes if not any(w.text.strip() for w in box.query(Lines) if w.size.height)]


@pytest.mark.parametrize(
    ("state", "run", "size"),
    [
        ("connecting", "ppo", (120, 40)),
        ("connecting", None, (80, 24)),
        ("failed", None, (120, 40)),
        ("failed", "ppo", (80, 24)),
        ("failed", "ppo", (50, 14)),
    ],
)
def test_no_box_is_empty(
    scene: MakeScene, play: Play, state: Any, run: str | None, size: tuple[int, int]
) -> None:
    there = scene()
    there.client.link = Link(state, 0.0, CANNOT)

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        assert boxes_without_a_word(app) == []
        if size[0] < 60:
            assert CANNOT[:20] in " ".join(w.text for w in app.screen.query(Lines))

    play(there.app(run=run), script, size)


def test_a_problem_of_history_is_shown_with_and_without_a_run(scene: MakeScene) -> None:
    there = scene(gpus=1).live()
    assert header.banner(there.app().view(RUN)) is None
    there.node = msgspec.structs.replace(there.node, history="the thread has ended")
    there.update()
    for run in (RUN, None):
        banner = header.banner(there.app().view(run))
        assert banner is not None
        assert "the thread has ended" in banner.text
    there.update(run={"recording": "the disk is full"})
    banner = header.banner(there.app().view(RUN))
    assert banner is not None
    assert "the disk is full" in banner.text
