"""What screens, dialogs and widgets know of the app: its protocol, its messages, and the frame clock.

They import this module, never the app itself. The clock gives its next beat, the parts of a screen that are
due, and how a slow link slows them. It has no timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from textual.message import Message

from hoptui.client.client import Change
from hoptui.domain.jobs import JobNode, JobState
from hoptui.domain.pacing import CHARTS_S, LISTS_S, NUMBERS_S, REST_S, TICK_S
from hoptui.protocol.messages import RunState
from hoptui.tui.actions import Action
from hoptui.tui.preferences import Preferences
from hoptui.tui.run_control import Staging, Steering
from hoptui.tui.snapshot import View, ViewerClient

if TYPE_CHECKING:
    from pathlib import Path

    from rich.style import Style
    from textual.binding import ActiveBinding
    from textual.notifications import SeverityLevel
    from textual.screen import Screen

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


class StoreChanged(Message):
    """The client's thread saw a change of state; rows alone are never told."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, StoreChanged) and message.change == self.change


class Picked(Message):
    """Enter or, `clicked`, a double click on a row of a list."""

    def __init__(self, index: int, *, clicked: bool = False) -> None:
        super().__init__()
        self.index, self.clicked = index, clicked


class Moved(Message):
    """The cursor of a list stands on another row, or there is room for more or fewer of them."""


class Appearance(Protocol):
    """What a widget needs in order to draw."""

    @property
    def ascii(self) -> bool: ...
    @property
    def colours(self) -> bool: ...
    @property
    def mixes(self) -> bool: ...
    @property
    def inks(self) -> Mapping[str, Style]: ...
    @property
    def theme_variables(self) -> dict[str, str]: ...
    @property
    def screen(self) -> Screen[Any]: ...


class AppProtocol(Appearance, Protocol):
    """The app, as a screen or a box sees it."""

    @property
    def preferences(self) -> Preferences: ...
    @property
    def client(self) -> ViewerClient: ...
    @property
    def steering(self) -> Steering: ...
    @property
    def staging(self) -> Staging: ...
    @property
    def alone_panels(self) -> dict[str, str]:
        """The panel that is shown alone, by run: it is no preference, and a later session shows all."""
        ...

    @property
    def pace(self) -> Pace: ...
    @property
    def news(self) -> News: ...
    @property
    def worked(self) -> Mapping[str, ActiveBinding]: ...
    @property
    def clock(self) -> Callable[[], float]: ...

    def view(self, run: str | None) -> View: ...
    def can_undo(self, view: View) -> bool: ...
    def furnish(self, screen: Any) -> None: ...
    def copy_to_clipboard(self, text: str) -> None: ...

    # Keys and messages
    def keyed(self, action: Action) -> Action: ...
    def offered(self, actions: list[Action]) -> list[Action]: ...
    def legend(self, actions: Iterable[Action]) -> str: ...
    def tell(
        self,
        sentence: str,
        severity: SeverityLevel = "warning",
        *,
        title: str = "",
        timeout: float | None = None,
    ) -> None: ...

    # Preferences
    def choose_theme(self, word: str) -> None: ...
    def hide_or_show(self, panel: str) -> None: ...

    # Screens
    def push_screen(self, screen: Screen[Any], callback: Callable[[Any], None] | None = None) -> object: ...
    def has_other_run(self, here: str | None) -> bool: ...
    def open_run(self, run: RunState) -> None: ...
    def open_next_run(self, here: str | None, step: int) -> None: ...
    def open_overview(self) -> None: ...
    def open_gpus(self, gpu: str, run: str | None = None) -> None: ...
    def open_where(self, run: str) -> None: ...
    def open_output(self, run: str) -> None: ...
    def open_job(self, run: str) -> None: ...
    def open_node(self, node: JobNode, job: JobState) -> None: ...
    def open_charts(self, run: str | None, *, find: bool) -> None: ...
    def open_comparison(self, run: str, recorded: Path | None, beside: Sequence[Path]) -> None: ...
    def open_staged_changes(self, run: str) -> None: ...
    def edit_knob(self, run: str, knob: str) -> None: ...
