"""The time bar of a replay: where it stands, on a track with a tick for each command and event."""

from __future__ import annotations

from textual import events
from textual.message import Message

from hoptui.client.replay import SECOND, Reel
from hoptui.presentation import numbers, vocabulary
from hoptui.tui.styled_text import FULL, GAP, TRACK, Line, Span, width_of
from hoptui.tui.widgets.text_block import Lines

HEAD = "●"
TICKS = {"info": ("┆", "dim"), "command": ("┆", "mark"), "warning": ("│", "warn"), "alarm": ("│", "bad")}
"""How each kind of tick is drawn; where several share a cell the last of these is."""
_RANKS = tuple(TICKS)
SPEED = 5  # cells of the speed, so that what stands after it does not move


class Sought(Message):
    """A click on the track: go to this share of the recording."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share


class TimeBar(Lines):
    """One line, or two where its style gives it two: then the track has a line of its own."""

    def __init__(self) -> None:
        super().__init__("time-bar")
        self._track = (0, 0, 1)  # line, first cell, cells

    def show_reel(self, reel: Reel, note: str = "") -> None:
        """Draw where the replay stands; `note` is flush right where there is a line for it."""
        width = self.size.width
        stand = standing(reel)
        if self.size.height > 1:
            self._track = (0, 1, max(1, width - 2))
            about: Line = (Span(note, "dim"), Span(" "))
            self.show([(Span(" "), *track(reel, width - 2)), (*stand, GAP, *about)])
            return
        start = width_of(stand) + 2
        self._track = (0, start, max(1, width - start - 1))
        self.show([(*stand, Span("  "), *track(reel, width - start - 1))])

    def on_click(self, event: events.Click) -> None:
        line, start, cells = self._track
        if event.y == line and start <= event.x < start + cells:
            self.post_message(Sought((event.x - start) / max(1, cells - 1)))


def standing(reel: Reel) -> Line:
    """`▶ 20×   14:05:30   1:20:31 / 2:14:05`."""
    word = vocabulary.PLAYING if reel.playing else vocabulary.HALTED
    whole = (reel.end - reel.start) / SECOND
    return (
        Span(f" {word.symbol} ", "title"),
        Span(f"{reel.speed:g}×", "strong" if reel.playing else "dim", SPEED + 1),
        Span(numbers.clock(reel.wall(reel.position)), "strong"),
        Span(f"  {elapsed((reel.position - reel.start) / SECOND, whole)}"),
        Span(f" / {elapsed(whole, whole)}", "dim"),
    )


def track(reel: Reel, width: int) -> Line:
    """The whole recording in `width` cells: what is behind is heavy, the head stands at the position."""
    if width < 2:
        return ()
    span = max(1, reel.end - reel.start)
    head = (reel.position - reel.start) * (width - 1) // span
    ranks = [-1] * width
    for tick in reel.ticks:
        cell = min(max((tick.t - reel.start) * (width - 1) // span, 0), width - 1)
        ranks[cell] = max(ranks[cell], _RANKS.index(tick.kind))
    spans: list[Span] = []
    for cell, rank in enumerate(ranks):
        if cell == head:
            symbol, ink = HEAD, "strong"
        elif rank >= 0:
            symbol, ink = TICKS[_RANKS[rank]]
        else:
            symbol, ink = (FULL, "1") if cell < head else (TRACK, "track")
        if spans and spans[-1].ink == ink:
            spans[-1] = Span(spans[-1].text + symbol, ink)
        else:
            spans.append(Span(symbol, ink))
    return tuple(spans)


def elapsed(seconds: float, whole: float) -> str:
    """A time since the start, as wide as that of the whole: `1:05`, and from an hour on `0:01:05`."""
    return _clock(seconds, whole).rjust(len(_clock(whole, whole)))


def _clock(seconds: float, whole: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if whole >= 3600 else f"{m}:{s:02}"
