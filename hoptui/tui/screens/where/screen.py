"""The screen of lines: what the training threads of a run do, and at which lines of the script."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from hoptui.domain.line_counts import CountedLine, FoundLines, LineCounts, SharedLine, shares
from hoptui.model.source_code import source_around, source_line
from hoptui.tui.actions import Action, bindings, picking
from hoptui.tui.app_protocol import Frame, Picked
from hoptui.tui.components import lines
from hoptui.tui.screen_base import RunPage, TextBox, set_height
from hoptui.tui.screens.where import content
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Span
from hoptui.tui.widgets import Choices, KeyBar, Lines, Panel

AROUND = 5
"""Lines of source before and after one, in its box."""


class WhereScreen(RunPage):
    """The lines of the run with the id `run`: of the last minute or its whole time, of all ranks or one."""

    BINDINGS = bindings("where")

    page = lines.TITLE.lower()
    run_id: str

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.whole = False
        self.rank: int | None = None
        self._sources: dict[tuple[str, int], str] = {}  # "" for one that cannot be read
        self._reading = False

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Lines("choice")
        yield Lines("kinds")
        yield Panel(Lines("line-head"), Choices("line-list"), name="lines")
        yield KeyBar()

    def on_mount(self) -> None:
        self._list("line-list").focus()
        super().on_mount()

    # drawing ----------------------------------------------------------------------------------------------

    def draw_lists(self, view: View) -> None:
        self.hoptui.client.fetch_lines(self.run_id, every_rank=True, whole=self.whole)
        found, ranks = self._found(view), self._ranks(view)
        listed, faded = shares(ranks), not self.whole and lines.old(view, ranks)
        choices, head = self._list("line-list"), self._lines("line-head")
        width = choices.size.width
        known = list(found.ranks) if found is not None else []
        self._lines("choice").show([content.choice(known, self.rank, self.size.width, whole=self.whole)])
        self._lines("kinds").show([(Span("  "), *lines.kinds(ranks, self.size.width - 2))], faded=faded)
        choices.keep([content.key(one.line) for one in listed], from_top=True)
        cells = content.columns(listed, width, several=len(ranks) > 1)
        if listed:
            choices.show_rows(
                content.rows(listed, cells, self._sources, choices.index), len(listed), faded=faded
            )
        else:
            choices.show_rows([(Span(part, "dim"),) for part in self._nothing(view, width)], 0)
        head.display = bool(listed)
        head.show([content.head(cells)] if listed else [])
        title = ["Lines", choices.part or (str(len(listed)) if listed else "")]
        title += [lines.amount(view, ranks)] if ranks else []
        missing = content.notes(found) if found is not None else ""
        self._panel("lines").label(" · ".join(filter(None, title)), missing)
        self._read_sources(view, listed)

    def _nothing(self, view: View, width: int) -> list[str]:
        found = self._found(view)
        if self.rank is not None and found is not None and found.ranks:
            return [f"rank {self.rank} has sent no stack samples"]
        return lines.wrapped(lines.reason(view, found, whole=self.whole), width)

    def keys(self, view: View) -> list[Action]:
        opens = [picking("source")] if self._shown(view) else []
        label = {"where.whole": "last minute" if self.whole else "whole run"}
        return [*opens, *(a._replace(label=label.get(a.id, a.label)) for a in self.key_actions("where"))]

    def _found(self, view: View) -> FoundLines | None:
        return lines.of(view, whole=self.whole)

    def _ranks(self, view: View) -> Mapping[int, LineCounts]:
        return lines.chosen(self._found(view), self.rank)

    def _shown(self, view: View) -> list[SharedLine]:
        return shares(self._ranks(view))

    # sources ----------------------------------------------------------------------------------------------

    def _read_sources(self, view: View, listed: Iterable[SharedLine]) -> None:
        """Read the source of lines that were not looked at, in a thread: a file system may hang."""
        wanted = [(one.line.file, one.line.line) for one in listed]
        missing = [place for place in wanted if place not in self._sources]
        if missing and not self._reading and not view.link.node:
            self._reading = True
            self.run_worker(self._add_sources(missing))

    async def _add_sources(self, places: Sequence[tuple[str, int]]) -> None:
        found = await asyncio.to_thread(lambda: {place: source_line(*place) for place in places})
        self._sources |= found
        self._reading = False
        self.redraw()

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "rank":
            found = self._found(self.view())
            return self.rank is not None or (found is not None and len(found.ranks) > 1)
        return True

    def works(self, action: Action) -> bool:
        return super().works(action) and (
            not action.action.startswith("rank") or bool(self.check_action("rank", ()))
        )

    def action_whole(self) -> None:
        self.whole = not self.whole
        self.redraw()

    def action_rank(self, by: int) -> None:
        found = self._found(self.view())
        ring: list[int | None] = [None, *(found.ranks if found is not None else ())]
        at = ring.index(self.rank) if self.rank in ring else 0
        self.rank = ring[(at + by) % len(ring)]
        self.redraw()

    def on_picked(self, event: Picked) -> None:
        event.stop()
        view = self.view()
        shown = self._shown(view)
        if event.index < len(shown):
            self.app.push_screen(LineBox(self, shown[event.index].line))

    def ranks(self) -> Mapping[int, LineCounts]:
        """The samples that are shown, by rank."""
        return self._ranks(self.view())


class LineBox(TextBox):
    """A line of a `WhereScreen`, with its source."""

    BINDINGS = bindings("help", "text")

    def __init__(self, below: WhereScreen, line: CountedLine) -> None:
        super().__init__()
        self._below = below
        self._line = line
        self._source: list[tuple[int, str]] | None = None

    def compose(self) -> ComposeResult:
        scroll = VerticalScroll(Lines("line-lines"), id="line-scroll", can_focus=False)
        yield Panel(scroll, name="line", kind="box")

    def on_mount(self) -> None:
        view = self._below.view()
        keys = (view.hint("text.down", "down"), view.hint("help.close", "closes"))
        self.query_one(Panel).label(lines.place(self._line), "   ".join(filter(None, keys)))
        if view.link.node:
            self._source = []
        else:
            self.run_worker(self._read())
        self.redraw()

    async def _read(self) -> None:
        line = self._line
        self._source = await asyncio.to_thread(source_around, line.file, line.line, AROUND)
        self.redraw()

    def draw(self, frame: Frame) -> None:
        shown = self._lines("line-lines")
        if shown.size.width:
            view, ranks = self._below.view(), self._below.ranks()
            text = content.story(view, self._line, ranks, self._source, shown.size.width)
            set_height(shown, len(text))
            shown.show(text)
