"""The box that asks where in a recording to go."""

from __future__ import annotations

import textwrap

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input

from hoptui.client.replay import SECOND, Replay
from hoptui.presentation import numbers
from hoptui.tui.actions import bindings, of
from hoptui.tui.frame_clock import Frame
from hoptui.tui.screen_base import LiveBox
from hoptui.tui.styled_text import Span
from hoptui.tui.widgets.panel import Panel
from hoptui.tui.widgets.text_block import Lines
from hoptui.tui.widgets.time_bar import elapsed

FORMS = (
    ("14:05:30", "a time of day, or with its date 2026-05-04 14:05"),
    ("+1h20m", "after the start, as is 1:20:00; -10m: before the end"),
    ("50%", "a share of the whole"),
    ("#1200", "an iteration"),
)


class GoTo(LiveBox[int]):
    """Ends with the stamp to go to, or None."""

    BINDINGS = bindings("goto")

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self._replay = replay
        self.found: int | None = None

    def compose(self) -> ComposeResult:
        with Panel(name="go-to", kind="box"):
            yield Lines("forms")
            with Horizontal(id="where-entry"):
                yield Lines("where-prompt")
                yield Input(id="where", compact=True)
            yield Lines("where-verdict")

    def on_mount(self) -> None:
        self._panel("go-to").label("Go to", self.hoptui.legend(of("goto")))
        self._lines("forms").show([(Span(form, "key", 12), Span(meaning, "dim")) for form, meaning in FORMS])
        self._lines("where-prompt").show([(Span("where", "dim"),)])
        self.query_one(Input).focus()

    def draw(self, frame: Frame) -> None:
        """Nothing in it changes but the width there is."""
        if frame.lists:
            self._tell(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._tell(event.value)

    def action_go(self) -> None:
        """Go there; with nothing typed, stay; with nonsense typed, say what is wrong with it again."""
        typed = self.query_one(Input).value
        self._tell(typed)
        if self.found is not None or not typed.strip():
            self.dismiss(self.found)

    def _tell(self, typed: str) -> None:
        """Show what is meant, in as many lines as it takes."""
        said = self._lines("where-verdict")
        sign, verdict = self._judge(typed) or (Span(""), Span(""))
        found = textwrap.wrap(verdict.text, max(8, said.size.width - 2))
        said.show([(sign if not i else Span("  "), Span(line, verdict.ink)) for i, line in enumerate(found)])

    def _judge(self, typed: str) -> tuple[Span, Span] | None:
        """Find what is meant; a sign, and the moment or what is wrong with it."""
        self.found = None
        if not typed.strip():
            return None
        try:
            self.found = self._replay.find(typed)
        except ValueError as error:
            return (Span("✕ ", "bad"), Span(str(error), "warn"))
        reel = self._replay.reel
        whole = (reel.end - reel.start) / SECOND
        since = elapsed((self.found - reel.start) / SECOND, whole).strip()
        return (
            Span("✓ ", "good"),
            Span(f"{numbers.day_clock(reel.wall(self.found))}, {since} after the start"),
        )
