"""Small terminals: what there is no room for goes as a whole, and no number loses its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobError, check_value
from hoptui.tui.components import gpus, header
from hoptui.tui.screens.knob_editor.screen import KnobEditor
from hoptui.tui.styled_text import lay
from hoptui.tui.widgets import Panel
from tests.tui.conftest import RUN

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
COMPACT = (80, 24)


@pytest.mark.parametrize("width", [60, 72, 80, 120])
def test_what_there_is_no_room_for_leaves_whole_what_is_left(scene: MakeScene, width: int) -> None:
    there = scene().live()
    there.update(run={"total": 1_000_000, "name": "ppo-cartpole-nightly"})
    view = there.app().view(RUN)
    line = "".join(piece for piece, _ in lay(header.identity(view, "", width), width))
    assert "…" not in line
    assert "ppo-cartpole-nightly" in line
    assert "  ● live" in line
    assert "1 204 / 1 000 000" in line
    assert ("· gpu07" in line, "ETA" in line) == {60: (False, False), 72: (False, True)}.get(
        width, (True, True)
    )


def test_a_small_gpu_line_cuts_no_number(scene: MakeScene) -> None:
    there = scene(gpus=1).live()
    now = there.client.store.latest("gpu/GPU-0")
    there.gpu(**{**now, "tensor_active": 0.034, "busy": 100.0})
    line = gpus.short(there.app().view(RUN), there.gpus[0], 76)
    shown = "".join(piece for piece, _ in lay(line, 76))
    assert "busy 100   SM 81    tensor 0.03  DRAM 31    633/700 W  58.1/80.0 GiB" in shown


def test_why_a_gpu_cannot_be_read_is_told_to_its_end(scene: MakeScene) -> None:
    reason = "fell off the bus (Xid 79): the machine must be restarted"
    there = scene(gpus=1).change_gpu(0, problem=fact("recorded", text=reason))
    view = there.live().app().view(RUN)
    lines = gpus.detail(view, there.gpus[0], 30)
    told = " ".join("".join(span.text for span in line) for line in lines)
    assert " ".join(told.split()) == f"✕ {reason}"


def test_a_box_without_room_for_a_knob_is_not_drawn(scene: MakeScene, play: Play, read_all: ReadAll) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.pause()
        panels = {panel.id: panel for panel in app.screen.query(Panel)}
        shown = {name for name, panel in panels.items() if panel.size.height}
        assert shown == {"compact"}
        await pilot.press("tab")
        await pilot.pause()
        assert {name for name, panel in panels.items() if panel.size.height} == {"events"}
        assert panels["events"].region.height > 3
        await pilot.press("tab")
        await pilot.resize_terminal(*COMPACT)
        await pilot.pause()
        assert "› num_envs" in read_all(app)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, KnobEditor), "the knobs have the keys again"

    there = scene(gpus=4).live().history()
    there.update(run={"gpus": tuple(gpu.uuid for gpu in there.gpus)})
    play(there.app(), script, (60, 16))


def test_every_key_that_works_in_the_smallest_terminal_can_be_found_there(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        keys = read(app, "keys")
        assert keys.strip().startswith("e edit knob")
        assert keys.endswith("? help  q leave")

    play(scene(gpus=1).live().app(), script, (40, 10))


def test_the_lines_that_the_key_numbers_leave_show_knobs(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        shown = read(app, "numbers").splitlines()
        assert len(shown) == app.screen.query_one("#numbers").size.height
        assert any(line.startswith("› num_envs") for line in shown)
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, KnobEditor)

    play(scene(gpus=1).live().app(), script, (40, 12))


def test_where_no_knob_is_shown_none_can_be_edited_and_the_numbers_are_whole(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert "edit knob" not in read(app, "keys")
        assert "1 204 / 5 000 iter" in " ".join(read(app, "numbers").split())
        await pilot.resize_terminal(40, 6)
        await pilot.pause()
        assert "edit knob" not in read(app, "keys")
        await pilot.press("e")
        await pilot.pause()
        assert not isinstance(app.screen, KnobEditor)

    play(scene(gpus=1).live().app(), script, (20, 5))


def test_the_editor_tells_all_that_a_change_means_until_the_room_is_needed_for_what_became_of_it(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("down", "down", "e", "up")
        await pilot.pause()
        about = [line.split()[0] for line in read(app, "about").splitlines() if line.strip()]
        assert about == ["in", "bounds", "effect", "cost", "keeps", "takes"]
        box = app.screen.query_one(Panel).region
        assert 0 <= box.y < box.bottom <= 16
        await pilot.press("9", "9", "9")
        await pilot.pause()
        with pytest.raises(KnobError) as refused:
            check_value(app.screen.draft.spec, 5999)
        assert " ".join(read(app, "verdict").split()) == f"✕ {refused.value}"
        assert "takes effect" not in read(app, "about"), "nothing can be sent"
        await pilot.press("backspace", "backspace", "backspace", "enter")
        await pilot.pause()
        assert read(app, "trail").startswith("→ sent")
        for name in ("trail", "value", "about"):
            assert app.screen.query_one(Panel).region.contains_region(app.screen.query_one(f"#{name}").region)
        assert app.screen.query_one("#trail").size.height == 3

    play(scene(gpus=1).live().app(), script, (60, 16))


def test_a_number_that_is_yet_to_be_typed_is_asked_for(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("e", "ctrl+u")
        await pilot.pause()
        assert read(app, "verdict").strip() == "✕ num_envs needs a value"

    play(scene(gpus=1).live().app(), script, (80, 24))


def test_the_palette_has_no_page_to_turn_where_no_line_has_room(scene: MakeScene, play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.resize_terminal(1, 1)
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press("down", "pagedown", "pageup", "end")
        await pilot.resize_terminal(120, 40)
        await pilot.press("pagedown", "escape")
        await pilot.pause()

    play(scene().live().app(), script)
