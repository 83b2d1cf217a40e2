"""The frame clock: its next beat, the parts of a screen that are due, and how a slow link slows them. No
timers.
"""

from __future__ import annotations

from typing import NamedTuple

from hoptui.domain.pacing import CHARTS_S, LISTS_S, NUMBERS_S, REST_S, TICK_S

DEEP = 2  # frames that may wait for the terminal; Textual's queue holds 30 and then blocks the app
SLOWEST = 8
SLOWER_S = 1.0
RECOVER_S = 3.0


class Frame(NamedTuple):
    """What is to be drawn now."""

    numbers: bool = True
    charts: bool = True
    lists: bool = True


EVERYTHING = Frame()
NOTHING = Frame(False, False, False)


class News:
    """Which parts of a frame may have changed since they were drawn last.

    A `moment` decides: the number of changes in the store, the second that clocks and ages show, the state of
    the link.
    """

    def __init__(self) -> None:
        self._drawn: dict[str, object] = {}

    def of(self, frame: Frame, moment: object) -> Frame:
        """The due parts that were not drawn at this moment yet; they count as drawn from now on."""
        due = [part for part, is_due in frame._asdict().items() if is_due and self._drawn.get(part) != moment]
        self._drawn.update(dict.fromkeys(due, moment))
        return Frame(*(part in due for part in Frame._fields))

    def forget(self) -> None:
        """Something else has changed how they look: draw all of them at the next beat."""
        self._drawn.clear()


class Pace:
    """Decides at every tick what is due, from monotonic seconds and the number of frames that wait for the
    terminal.

    Nothing is drawn while more than `DEEP` frames wait, so the screen is never older than these frames. Then
    the pace is halved, again every `SLOWER_S`, down to an eighth. It recovers in steps, each `RECOVER_S`
    after the queue was last that deep. So a link at its limit does not oscillate.
    """

    def __init__(self) -> None:
        self.divisor = 1
        self._slowed_at = -SLOWER_S
        self._calm_since = 0.0
        self._drawn = {"numbers": -LISTS_S, "charts": -LISTS_S, "lists": -LISTS_S}

    @property
    def slow(self) -> bool:
        return self.divisor > 1

    @property
    def crawls(self) -> bool:
        """Whether the terminal has taken next to nothing for seconds, as one that nobody looks at."""
        return self.divisor == SLOWEST

    def due(self, now: float, waiting: int) -> Frame:
        """The parts whose period is over since they were drawn."""
        self._judge(now, waiting)
        if waiting > DEEP:
            return NOTHING
        periods = {"numbers": NUMBERS_S, "charts": CHARTS_S, "lists": LISTS_S}
        least = {part: period * self.divisor - TICK_S / 4 for part, period in periods.items()}
        return Frame(**{part: now - self._drawn[part] >= period for part, period in least.items()})

    def drew(self, frame: Frame, now: float) -> None:
        """These parts are being drawn."""
        self._drawn.update((part, now) for part, drawn in frame._asdict().items() if drawn)

    def rest_s(self, now: float, wall: float, *, calm: bool) -> float:
        """Seconds until the next beat of the clock.

        If `calm`, news is drawn together with the next second of the clock on screen, whose time is `wall`.
        """
        if calm:
            return max(TICK_S, REST_S - wall % REST_S)
        period = REST_S if self.crawls else TICK_S
        return period - now % period

    def _judge(self, now: float, waiting: int) -> None:
        if waiting > DEEP:
            self._calm_since = now
            if now - self._slowed_at >= SLOWER_S:
                self._slowed_at = now
                self.divisor = min(SLOWEST, 2 * self.divisor)
        elif self.slow and now - self._calm_since >= RECOVER_S:
            self._calm_since = now
            self.divisor //= 2
