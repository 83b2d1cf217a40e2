"""What screens, dialogs and widgets know of the app: its protocol, and the messages that reach it.

They import this module, never the app itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from textual.message import Message

from hoptui.client.client import Change
from hoptui.protocol.messages import RunState
from hoptui.tui.actions import Action
from hoptui.tui.frame_clock import News, Pace
from hoptui.tui.preferences import Preferences
from hoptui.tui.run_control import Staging, Steering
from hoptui.tui.snapshot import View, ViewerClient

if TYPE_CHECKING:
    from rich.style import Style
    from textual.binding import ActiveBinding
    from textual.notifications import SeverityLevel
    from textual.screen import Screen


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
    def open_charts(self, run: str | None, *, find: bool) -> None: ...
    def open_staged_changes(self, run: str) -> None: ...
    def edit_knob(self, run: str, knob: str) -> None: ...
