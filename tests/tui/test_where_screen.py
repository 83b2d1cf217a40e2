"""Where the time goes: the panel of the run screen, the screen of lines, and why nothing is known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hoptui.client.client import Link
from hoptui.domain.columns import pack
from hoptui.domain.line_counts import FoundLines
from hoptui.domain.stacks import Stack, StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.recording import Recording
from hoptui.recording.stack_minutes import encode
from hoptui.tui.components import lines
from hoptui.tui.screens.where.screen import LineBox, WhereScreen
from hoptui.tui.widgets import Panel
from tests.conftest import until
from tests.model.recorded_run import BOOT, ID, at, write
from tests.tui.conftest import LINES, RUN, SECOND, Scene, line, rendered
from tests.tui.replay_player import Player

Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
SLOW = line("input", 37, "augment", "rotate", "data.py")
STEP = line("compute", 133, "update", "run_backward")


def without_phases(**options: Any) -> Scene:
    """A run that logs and names no phases."""
    there = Scene(**options).live(history=False)
    rows = [(there.client.ns - (60 - i) * SECOND, i, {"iteration_s": 1.0, "loss": 0.5}) for i in range(60)]
    there.tell(columns=(pack(f"run/{RUN}", rows),))
    return there


def title(app: Any, panel: str) -> str:
    return str(app.screen.query_one(f"#{panel}", Panel).title)


COPY = line("copy", 1204, "Trainer.prefetch_batches", "Tensor.to", "trainers/prefetching_trainer.py")


def test_the_place_of_a_line_has_room_before_the_words_for_its_kind(play: Play, read: Read) -> None:
    there = without_phases().sampled({COPY: 83, STEP: 17}, {COPY: 100})
    there.update(run={"world": 2})
    place = "prefetching_trainer.py:1204 Trainer.prefetch_batches"

    async def script(app: Any, pilot: Any) -> None:
        assert "copies to/from the GPU" not in read(app, "summary").splitlines()[5]
        assert place in read(app, "summary").splitlines()[5]
        await pilot.press("w")
        await pilot.pause()
        first = read(app, "line-list").splitlines()[0]
        assert first.rstrip().endswith(place), "a column without room is left out"
        assert "copies to/from the GPU" in read(app, "kinds")

    play(there.app(), script, (80, 24))


def test_a_bar_leaves_the_place_of_a_line_its_room() -> None:
    there = without_phases().sampled({COPY: 83, STEP: 17})
    ranks = lines.first(lines.of(there.app().view(RUN)))
    wide, narrow = (rendered(lines.rows(ranks, width, 2), width)[0] for width in (110, 84))
    assert "━" in wide
    assert "copies to/from the GPU" in wide
    assert "━" not in narrow
    assert "Trainer.prefetch_batches" in narrow
    assert "copies to/from the GPU" in narrow


def test_a_run_without_phases_has_its_lines_in_their_place(play: Play, read: Read) -> None:
    there = without_phases().sampled({SLOW: 83, STEP: 17})

    async def script(app: Any, pilot: Any) -> None:
        assert title(app, "phases") == "Where the time goes · 100 samples in 1 m 0 s"
        shown = read(app, "where-lines").splitlines()
        assert shown[0] == "━ loads data 83 %  ━ computes 17 %"
        assert shown[1] == " 83 %  loads data  data.py:37 augment (rotate)"
        assert shown[2] == " 17 %  computes    ppo.py:133 update (run_backward)"
        assert shown[3] == lines.HINT
        assert app.screen.query_one("#phase-lines").size.height == 0

    play(there.app(), script)
    assert (RUN, False, False) in there.client.lines_asked, "its first rank is enough"


def test_a_run_with_phases_has_its_lines_below_them(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert title(app, "phases").startswith("Where an iteration goes")
        assert "rollout" in read(app, "phase-lines")
        first = read(app, "where-lines")
        assert first.startswith(" 36 %  steps environments  cartpole_env.py:88 rollout (")
        await pilot.resize_terminal(100, 32)
        await pilot.pause()
        assert read(app, "where-lines") == "", "the bars take all of the room"
        await pilot.press("4")
        await pilot.pause()
        assert "ppo.py:133 update (run_backward)" in read(app, "where-lines")
        assert "100┤" in read(app, "phase-chart")

    play(Scene().live().app(), script)


def test_a_small_terminal_has_the_first_line_of_a_run_without_phases(play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert "━ loads data 83 %  ━ computes 17 %" in read(app, "summary")
        assert "data.py:37 augment (rotate)" in read(app, "summary")

    play(without_phases().sampled({SLOW: 83, STEP: 17}).app(), script, (80, 24))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "asking the daemon"),
        (FoundLines(problem="old_daemon"), "the daemon is older than this hoptui"),
        (FoundLines(), "no stack samples of the last minute: the first come two seconds after the start"),
        (FoundLines(problem="unreadable", detail="disk gone"), "the recording cannot be read: disk gone"),
    ],
)
def test_without_samples_the_panel_says_why(
    play: Play, read: Read, found: FoundLines | None, why: str
) -> None:
    there = without_phases()
    if found is not None:
        there.client.store.apply_lines(RUN, found)

    async def script(app: Any, pilot: Any) -> None:
        told = " ".join(read(app, "where-lines").split())
        assert told.startswith(why)
        assert told.endswith(lines.HINT)

    play(there.app(), script)


def test_old_samples_say_until_when_they_are(play: Play) -> None:
    there = without_phases().sampled({SLOW: 10})
    there.client.ns += 40 * SECOND

    async def script(app: Any, pilot: Any) -> None:
        assert title(app, "phases") == "Where the time goes · 1 m 0 s until 40 s ago"
        assert app.screen.query_one("#where-lines").faded

    play(there.app(), script)


def ranks() -> Scene:
    """A run of three ranks; the last of them is slow."""
    there = Scene().live().sampled({STEP: 100}, {STEP: 100}, {SLOW: 60, STEP: 40})
    there.update(run={"world": 3})
    return there


def test_the_screen_lists_the_lines_of_all_ranks_and_of_each(play: Play, read: Read) -> None:
    there = ranks()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("w")
        await pilot.pause()
        assert isinstance(app.screen, WhereScreen)
        assert (RUN, True, False) in there.client.lines_asked
        assert read(app, "choice") == "  ›last minute  whole run   ranks ›all  0  1  2"
        assert read(app, "kinds") == "  ━ computes 80 %  ━ loads data 20 %"
        shown = read(app, "line-list").splitlines()
        first = " ".join(shown[0].split())
        assert first == "› 80 % ━━━━━━━━━╸── computes ppo.py:133 update rank 0 100 % (run_backward)"
        assert "rank 2 60 %" in shown[1]
        await pilot.press("n", "n", "n")
        await pilot.pause()
        assert read(app, "choice").endswith("all  0  1 ›2")
        first = " ".join(read(app, "line-list").splitlines()[0].split())
        assert first.startswith("› 60 % ━━━━━━━───── loads data data.py:37")
        assert "most on" not in read(app, "line-head")
        await pilot.press("n")
        await pilot.pause()
        assert "›all" in read(app, "choice")
        await pilot.press("N", "escape")
        await pilot.pause()
        assert not isinstance(app.screen, WhereScreen)

    play(there.app(), script)


def test_the_whole_run_is_asked_for_when_it_is_wanted(play: Play, read_all: ReadAll) -> None:
    there = Scene().live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("w", "a")
        await pilot.pause()
        assert (RUN, True, True) in there.client.lines_asked
        assert "reading the recording" in read_all(app)
        there.sampled({SLOW: 500}, whole=True, seconds=7200)
        app.screen.redraw()
        await pilot.pause()
        assert "500 samples in 2 h 0 m" in title(app, "lines")
        for problem, why in (
            (FoundLines(problem="elsewhere"), "the recording is on gpu99: hoptui where, there"),
            (
                FoundLines(problem="no_recording", detail="/x.hoptui"),
                "no recording here: /x.hoptui does not exist",
            ),
            (FoundLines(unreadable=2), "stack samples are damaged: 2 minutes"),
        ):
            there.client.link = Link("live", 0.0, node="gpu99")
            there.client.store.apply_lines(RUN, problem, whole=True)
            await pilot.press("a", "a")
            await pilot.pause()
            assert why in " ".join(read_all(app).split())

    play(there.app(), script)


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (60, 16), (40, 10)])
def test_in_every_size_share_kind_and_line_can_be_read(play: Play, read: Read, size: tuple[int, int]) -> None:
    async def script(app: Any, pilot: Any) -> None:
        app.open_where(RUN)
        await pilot.pause()
        first = read(app, "line-list").splitlines()[0]
        assert first.startswith("›  36 %")
        assert ("steps environments" if size[0] >= 80 else "steps env  ") in first
        assert size[0] < 60 or "cartpole_env.py:88 rollout" in first
        await pilot.press("end")
        await pilot.pause()
        assert "save" in read(app, "line-list").splitlines()[-1]

    play(Scene().live().app(), script, size)


def test_a_line_opens_with_its_source(play: Play, read: Read, tmp_path: Path) -> None:
    script_file = tmp_path / "train.py"
    script_file.write_text("".join(f"step({n})\n" for n in range(1, 40)))
    slow = line("script", 12, "main")
    here = type(slow)(slow.kind, str(script_file), 12, "main", "", 0)
    gone = type(slow)("save", str(tmp_path / "gone.py"), 3, "save", "torch.save", 0)
    there = Scene().live().sampled({here: 9, gone: 1})

    async def settled(app: Any, pilot: Any, text: str) -> None:
        for _ in range(200):
            await app.workers.wait_for_complete()
            await pilot.pause()
            if text in "\n".join(w.text for w in app.screen.query("Lines, Choices")):
                return
        raise AssertionError(f"waited in vain for {text!r}")

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("w")
        await settled(app, pilot, "step(12)")
        await pilot.press("enter")
        await settled(app, pilot, "› 12  step(12)")
        assert isinstance(app.screen, LineBox)
        told = read(app, "line-lines")
        assert f"{script_file}:12" in "".join(part.strip() for part in told.splitlines()[:3])
        assert "90 %, 9 samples of 10" in told
        assert "   7  step(7)" in told
        assert "  17  step(17)" in told
        await pilot.press("escape", "down", "enter")
        await settled(app, pilot, "the source cannot be read here")
        assert "torch.save, most often" in read(app, "line-lines")

    play(there.app(), script)


@pytest.fixture
def sampled(tmp_path: Path) -> Path:
    """A recording of ten minutes. The third minute has samples of one line, the fifth of another."""
    path = write(tmp_path / f"{ID}.hoptui")
    with Recording.create(path, boot=BOOT) as recording:
        for minute, number in ((3, 30), (5, 50)):
            t = at(60.0 * minute)
            stacks: dict[Stack, int] = {(StackFrame("/x/train.py", "main", number),): 600}
            recording.stacks(t, encode({0: [pack_stacks(stacks, t - 60 * SECOND, t)]}, t), 600)
    return path


def test_a_replay_shows_the_minute_around_its_moment(sampled: Path, read_all: ReadAll) -> None:
    player = Player(sampled)

    async def shows(pilot: Any, text: str) -> None:
        end = time.monotonic() + 15
        while text not in read_all(player.app):
            assert time.monotonic() < end, f"waited in vain for {text!r}"
            await player.wait(pilot, 1.0)
            await asyncio.to_thread(lambda: None)  # the thread that reads the recording gets its turn, too

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("w")
        await player.go(pilot, 150.0)
        await shows(pilot, "train.py:30")
        await player.go(pilot, 270.0)
        await shows(pilot, "train.py:50")
        assert "train.py:30" not in read_all(app)
        await pilot.press("a")
        await shows(pilot, "train.py:30")
        assert "train.py:50" in read_all(app)
        await player.go(pilot, 150.0)
        until(lambda: app.client.store.lines[ID, True].t1 < at(200.0), what="the earlier part")
        await player.wait(pilot, 1.0)
        assert "train.py:50" not in read_all(app)
        await pilot.press("a")
        await player.go(pilot, 30.0)
        await shows(pilot, "the recording has no stack samples of this time")

    player.play(script)


def test_kinds_that_only_a_newer_hoptui_knows_keep_their_name() -> None:
    there = Scene().live().sampled({line("dreams", 1, "main"): 3})
    view = there.app().view(RUN)
    assert rendered(lines.panel(view, 60, 4), 60) == ["━ dreams 100 %", "100 %  dreams  ppo.py:1 main"]


def test_the_lines_of_the_scene_are_all_of_its_samples() -> None:
    assert sum(LINES.values()) == sum(Scene().counts(LINES).kinds.values())
