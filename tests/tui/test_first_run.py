"""Before there is anything to see: every box says why it is empty, in the daemon's own words, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.client.client import Link
from hoptui.tui.components import (
    empty_state,
    events,
    gpus,
    header,
    knobs,
    learning_metrics,
    phases,
    processes,
    runs,
)
from hoptui.tui.screens.run import compact
from hoptui.tui.snapshot import View
from hoptui.tui.widgets.text_block import Lines

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
CANNOT = "the daemon could not be started: /tmp/hoptui-1000 is full"


def look(there: Any, run: str | None = None) -> View:
    return there.app(run=None).view(run)  # type: ignore[no-any-return]


def text(lines: Any) -> str:
    return "\n".join("".join(span.text for span in line) for line in lines)


@pytest.mark.parametrize(
    ("link", "said"),
    [
        (Link("connecting", 0.0), "connecting to the daemon"),
        (Link("connecting", 0.0, "no daemon is running"), "connecting to the daemon: no daemon is running"),
        (Link("failed", 0.0, CANNOT), CANNOT),
        (Link("failed", 0.0), "the daemon cannot be reached"),
        (Link("lost", 0.0, "gone"), "the link to the daemon is lost (gone): reconnecting"),
    ],
)
def test_without_a_node_every_panel_says_what_is_the_matter(scene: MakeScene, link: Link, said: str) -> None:
    there = scene()
    there.client.link = link
    view = look(there)
    assert empty_state.reason(view) == said
    assert text(runs.rows(view, 80, -1)).splitlines()[0] == said
    for whole in (
        compact.summary(view, "", 100, 60.0, plain=False),
        phases.lines(view, phases.measured(view), 100, 5),
    ):
        assert text(whole) == said
    short = "unknown: the daemon cannot be reached" if link.state == "failed" else said
    for lines in (
        processes.rows(view, 80, -1)[:1],
        events.lines(view, 5, 60),
        knobs.rows(view, 60, 0),
        learning_metrics.lines(view, "", 60)[:1],
    ):
        assert text(lines).strip() == short
    assert gpus.none(view) == short


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


def test_a_node_without_gpus_and_runs_says_why_and_how_to_begin(scene: MakeScene) -> None:
    view = look(scene(runs=False).live(history=False))
    assert empty_state.reason(view) == ""
    assert gpus.none(view) == "no NVIDIA driver: libnvidia-ml.so.1 was not found"
    assert text(gpus.absent(view, 40)).split() == gpus.none(view).split()
    assert len(gpus.absent(view, 40)) == 2
    assert text(processes.rows(view, 80, -1)).strip() == "there is no GPU"
    begin = text(runs.rows(view, 80, -1))
    assert "no run on this node yet" in begin
    assert "hoptui demo" in begin
    assert 'hoptui.connect("name")' in begin


def test_a_run_that_has_said_nothing_yet(scene: MakeScene) -> None:
    there = scene().live(history=False)
    there.update(run={"knobs": ()})
    view = look(there, "3f2a9c10")
    assert text(learning_metrics.lines(view, "", 60)).splitlines() == [
        "nothing is logged yet",
        "run.log(loss=…) in its loop is shown here",
    ]
    assert text(phases.lines(view, phases.measured(view), 60, 5)) == "no iteration has ended yet"
    assert "run.knob(name, value) declares one" in text(knobs.rows(view, 60, 0))


def test_who_is_on_a_gpu_is_never_nobody_where_it_is_unknown(scene: MakeScene) -> None:
    there = scene(gpus=1).live(history=False)
    there.tell(node=msgspec.structs.replace(there.node, sampler="the sampler ended (exit code 1)"))
    told = text(processes.rows(look(there), 80, -1))
    assert "who is on the GPUs is unknown: the sampler ended (exit code 1)" in told


def test_memory_that_nobody_holds_is_somebodys_in_another_container(scene: MakeScene) -> None:
    there = scene(gpus=2).live()
    said = "the driver names no process, yet 58.1 GiB are in use"
    assert text(processes.rows(look(there), 80, -1)).strip().startswith(f"{said}: by another container")
    assert text(processes.lines(look(there), 60, 3, "GPU-1")) == said
    for index in (0, 1):
        there.gpu(index, memory_used_bytes=float(3 << 20))
    assert text(processes.rows(look(there), 80, -1)).strip() == "no process holds a GPU"


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
