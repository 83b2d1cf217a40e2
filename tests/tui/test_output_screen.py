"""The screen of output: lines that follow, streams, ranks, search, and why there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hoptui.domain.terminal_text import TerminalText
from hoptui.model.outputs import FoundOutput, FoundStream
from hoptui.tui.screens.output.screen import OutputLineBox, OutputScreen
from hoptui.tui.widgets import Choices, Panel
from tests.tui.conftest import RUN, Scene

Play = Callable[..., None]
Read = Callable[[Any, str], str]


def stream(written: bytes, name: Any = "output", **fields: Any) -> FoundStream:
    text = TerminalText()
    text.feed(written)
    made = {"origin": "file", "source": name, "path": "/job/log.txt", "lines": text.lines}
    return FoundStream(name, **{**made, **fields})


def shows(scene: Scene, *streams: FoundStream, rank: int = 0, ranks: tuple[int, ...] = (0,)) -> None:
    scene.client.store.apply_output(RUN, FoundOutput(rank, streams, ranks))


def title(app: Any) -> str:
    return str(app.screen.query_one("#output", Panel).title)


def chosen(app: Any) -> int:
    return int(app.screen.query_one("#output-list", Choices).index)


NUMBERED = b"".join(b"line %d\n" % i for i in range(200))


def test_it_follows_the_newest_line_until_the_cursor_leaves_it(play: Play, read: Read) -> None:
    there = Scene().live()
    shows(there, stream(NUMBERED))

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("l")
        await pilot.pause()
        assert isinstance(app.screen, OutputScreen)
        assert title(app).startswith("Output · 200 · ")
        assert title(app).endswith("follows")
        assert read(app, "output-list").splitlines()[-1] == "line 199"
        shows(there, stream(NUMBERED + b"newest\n"))
        app.screen.redraw()
        await pilot.pause()
        assert read(app, "output-list").splitlines()[-1] == "newest"
        await pilot.press("up")
        await pilot.pause()
        assert title(app).endswith("stands")
        shows(there, stream(NUMBERED + b"newest\nnewer\n"))
        app.screen.redraw()
        await pilot.pause()
        assert chosen(app) == 199
        await pilot.press("end")
        await pilot.pause()
        assert title(app).endswith("follows")
        await pilot.press("l")
        await pilot.pause()
        assert not isinstance(app.screen, OutputScreen)

    play(there.app(), script)
    assert (RUN, 0) in there.client.output_asked


def test_streams_and_ranks_are_chosen(play: Play, read: Read) -> None:
    there = Scene().live()
    shows(there, stream(b"out\n", "stdout"), stream(b"err\n", "stderr"), ranks=(0, 1))

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("l")
        await pilot.pause()
        assert read(app, "choice") == "  ›stdout  stderr   ranks ›0  1"
        assert read(app, "output-list") == "out"
        await pilot.press("tab")
        await pilot.pause()
        assert read(app, "output-list") == "err"
        await pilot.press("n")
        await pilot.pause()
        assert there.client.output_asked[-1] == (RUN, 1)
        assert read(app, "output-list") == "asking the daemon"
        shows(there, stream(b"of one\n"), rank=1, ranks=(0, 1))
        app.screen.redraw()
        await pilot.pause()
        assert read(app, "output-list") == "of one"

    play(there.app(), script)


def test_a_search_shows_the_lines_with_its_words(play: Play, read: Read) -> None:
    there = Scene().live()
    shows(there, stream(NUMBERED + b"\x1b[33mWarning\x1b[0m: 17 things\n"))

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("l", "slash", *"warning 17", "enter")
        await pilot.pause()
        assert read(app, "output-list") == "Warning: 17 things"
        assert title(app).startswith("Output · 1 of 201")
        await pilot.press("slash", *"zzz", "enter")
        await pilot.pause()
        assert read(app, "output-list") == "no line contains 'warning 17zzz'"

    play(there.app(), script)


def test_a_long_line_is_shown_as_a_whole(play: Play, read: Read) -> None:
    there = Scene().live()
    shows(there, stream(b"word " * 60 + b"end\n"))

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("l", "enter")
        await pilot.pause()
        assert isinstance(app.screen, OutputLineBox)
        assert read(app, "output-line-text").rstrip().endswith("end")

    play(there.app(), script)


def test_it_says_why_there_are_no_lines(play: Play, read: Read) -> None:
    there = Scene().live()
    shows(there, stream(b"", "stdout", origin="terminal", path=""))

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("l")
        await pilot.pause()
        said = " ".join(read(app, "output-list").split())
        assert said.startswith("stdout goes to a terminal, which is not read; hoptui run --output copies")
        for found, expected in (
            (FoundOutput(problem="no_answer"), "the file system of the output does not answer"),
            (FoundOutput(problem="later_word"), "the output is not known: later_word"),
            (FoundOutput(), "the daemon has seen no process of this rank alive, so its output is not known"),
            (FoundOutput(streams=(stream(b""),)), "nothing has been written yet"),
        ):
            there.client.store.apply_output(RUN, found)
            app.screen.redraw()
            await pilot.pause()
            assert " ".join(read(app, "output-list").split()) == expected

    play(there.app(), script)


def test_the_run_screen_shows_the_last_line_of_a_run_that_failed(play: Play, read: Read) -> None:
    there = Scene().live()
    shows(there, stream(b"loss 0.4\n", "stdout"), stream(b"Traceback\nNCCL error: unhandled\n\n", "stderr"))

    async def script(app: Any, pilot: Any) -> None:
        async def ends(reason: str, detail: str = "") -> str:
            there.update(vital={"state": "exited"}, run={"exit_reason": reason, "exit_detail": detail})
            app.screen.redraw()
            await pilot.pause()
            return read(app, "verdict")

        assert "NCCL error" not in read(app, "verdict")
        assert there.client.output_asked == []
        assert "last output: NCCL error: unhandled  l shows more" in await ends("killed")
        assert (RUN, 0) in there.client.output_asked
        assert "last output" not in await ends("exception", "NCCL error: unhandled")
        assert "last output" not in await ends("finished")

    play(there.app(), script)
