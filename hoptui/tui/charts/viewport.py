"""The x axis that all charts of a screen share: live, frozen or all of it, zoom, pan, and one crosshair. Pure.

Places on it are integers of any unit: stamps in ns, or thousandths of an iteration. What there is to see is said anew with every
question, because a run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Mode = Literal["live", "frozen", "all"]
YOUNGEST = 16  # of a run that has just begun at least this part of the span is seen: one in so many


class Extent(NamedTuple):
    """What there is to see: from `first` to `last`. `newest` is where the run on screen is now; another beside it may reach further."""

    first: int
    newest: int
    last: int


class Timeline:
    """`span` is how much of the axis is seen, never less than `least`; `cross` is where the crosshair stands, None: nowhere."""

    def __init__(self, span: int, least: int) -> None:
        self.cross: int | None = None
        self._span = span
        self._least = least
        self._end: int | None = None  # None: it follows the newest
        self._whole = False

    @property
    def mode(self) -> Mode:
        """`live` follows the newest, `all` shows everything and grows with it, `frozen` stands still."""
        return "all" if self._whole else "live" if self._end is None else "frozen"

    def edges(self, there: Extent) -> tuple[int, int]:
        """The part that is seen."""
        if self._whole:
            return there.last - max(self._least, there.last - there.first), there.last
        if self._end is not None:
            return self._end - self._span, self._end
        span, known = self._span, there.newest - there.first
        least = max(known, self._span // YOUNGEST) if known > self._least else span
        while span // 2 >= max(least, self._least):  # a run that has just begun fills more than half of it
            span //= 2
        return there.newest - span, there.newest

    def zoom(self, factor: float, there: Extent, at: int | None = None) -> None:
        """See so many times as much: around `at`, else around the crosshair, else around what is newest or the middle.

        From everything on, it shows everything.
        """
        x0, x1 = self.edges(there)
        if at is None:
            seen = self.cross is not None and x0 <= self.cross < x1
            at = self.cross if seen else min(x1, there.newest) if self._end is None else (x0 + x1) // 2
        assert at is not None
        span = max(self._least, round((x1 - x0) * factor))
        if factor > 1 and span >= there.last - there.first:
            self.all()
            return
        share = (x1 - at) / max(1, x1 - x0)
        self._whole, self._span = False, span
        self._stand(at + round(share * span), there)

    def pan(self, share: float, there: Extent) -> None:
        """Move by a share of what is seen; at the newest it is live again, unless there is more beyond."""
        x0, x1 = self.edges(there)
        if self._whole and share > 0:
            return
        if self._whole:
            self._whole, self._span = False, x1 - x0
        self._stand(x1 + round(share * (x1 - x0)), there)

    def move_cross(self, share: float, there: Extent) -> None:
        """Move the crosshair by a share of what is seen; without one, it appears at the newest. At an edge the view follows."""
        x0, x1 = self.edges(there)
        width = x1 - x0
        if self.cross is None or not x0 <= self.cross <= x1:
            self.cross = max(x0, min(x1, there.newest))
            if share > 0:
                return
        self.cross = min(max(self.cross + round(share * width), min(there.first, x0)), there.last)
        if self.cross < x0:
            self.pan((self.cross - x0) / width, there)
        elif self.cross > x1:
            self.pan((self.cross - x1) / width, there)

    def live(self) -> None:
        """Follow the newest."""
        self._end, self._whole = None, False

    def all(self) -> None:
        """Show everything there is."""
        self._end, self._whole = None, True

    def freeze(self, there: Extent) -> None:
        """Stand still where it is, or follow the newest again."""
        if self._end is not None:
            self.live()
            return
        x0, x1 = self.edges(there)
        self._whole, self._span, self._end = False, x1 - x0, x1

    def remap(self, place: Callable[[int], int | None], there: Extent, least: int) -> None:
        """Go over to another axis: `place` says where a place of this one is on it, None where that is unknown."""
        x0, x1 = self.edges(there)
        start, end = place(x0), place(x1)
        self.cross = None if self.cross is None else place(self.cross)
        self._least = least
        if start is None or end is None:
            self.all()
            return
        self._span = max(least, end - start)
        self._end = None if self._end is None else end

    def _stand(self, end: int, there: Extent) -> None:
        """End there, but not outside of what there is; at the newest, if that is the end of it, follow it."""
        end = min(max(end, min(there.last, there.first + self._span)), there.last)
        self._end = None if end >= there.newest == there.last else end
