"""A chart that can be pointed at, dragged and zoomed with the mouse. What a gesture does is up to the screen."""

from __future__ import annotations

from textual import events
from textual.message import Message

from hoptui.tui.widgets.line_chart import LineChart


class Gesture(Message):
    """What was done on the chart at `share` of its width: 0 is its left end, 1 its right end."""

    def __init__(self, chart: TouchChart, share: float) -> None:
        super().__init__()
        self.chart = chart
        self.share = share


class Pointed(Gesture):
    """A click: the crosshair belongs there."""


class Turned(Gesture):
    """The wheel: what is there is to be seen closer (`direction` 1) or from further away (-1)."""

    def __init__(self, chart: TouchChart, share: float, direction: int) -> None:
        super().__init__(chart, share)
        self.direction = direction


class Dragged(Gesture):
    """The curves were pulled by `share` of the width; to the right is positive."""


class TouchChart(LineChart):
    """Posts `Pointed`, `Turned` and `Dragged`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._held: int | None = None  # the column that was pressed or last dragged to
        self._moved = False

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()
        self._held, self._moved = event.x, False

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._held is not None and event.x != self._held:
            self.post_message(Dragged(self, (event.x - self._held) / self._across))
            self._held, self._moved = event.x, True

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()
        pressed, self._held = self._held, None
        if pressed is not None and not self._moved and event.x >= self.axis:
            self.post_message(Pointed(self, self._share(event.x)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.post_message(Turned(self, self._share(event.x), 1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.post_message(Turned(self, self._share(event.x), -1))

    @property
    def _across(self) -> int:
        return max(1, self.size.width - self.axis)

    def _share(self, x: int) -> float:
        return min(max((x - self.axis + 0.5) / self._across, 0.0), 1.0)
