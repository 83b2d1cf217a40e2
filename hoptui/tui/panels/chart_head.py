"""The first lines of the chart screen: whose charts these are, and which part of the x axis they show. Pure."""

from __future__ import annotations

from hoptui.presentation import numbers
from hoptui.tui.board import Board
from hoptui.tui.lines import GAP, Line, Span, first_fitting
from hoptui.tui.panels import header
from hoptui.tui.panels.axes import Axis, StepAxis, TimeAxis
from hoptui.tui.timeline import Extent
from hoptui.tui.view import View

_MODES = {
    "live": ("● live", "good"),
    "all": ("● all history", "good"),
    "frozen": ("‖ frozen", "warn"),
}


def identity(view: View, board: Board, beside: str) -> Line:
    """`hoptui  ppo-cartpole · chart 2 of 4  beside ppo-before`."""
    host = numbers.clean(view.node.host, 40) if view.node else ""
    name = numbers.clean(view.run.name, 40) if view.run else host
    count = f" · chart {board.index + 1} of {len(board.charts)}" if board.charts else " · charts"
    return (
        *header.titled(name, count),
        Span(f"  beside {beside}" if beside else "", "2"),
        GAP,
        *header.corner(view),
    )


def span_line(
    view: View,
    board: Board,
    axis: Axis,
    seen: tuple[int, int],
    there: Extent,
    iteration: float | None,
    width: int,
) -> Line:
    """`● live   10:36:02 … 10:41:02   crosshair 10:40:51  iteration 1 190`; `iteration` is that at the crosshair. On an axis of
    iterations `● live   iterations 1 084 … 1 204   crosshair 1 190  10:40:51`. What has no room in `width` cells is left out."""
    said, ink = _MODES[board.timeline.mode]
    if board.timeline.mode == "live" and view.replay is not None:
        said = "● at the position"
    elif board.timeline.mode == "live" and view.link.state != "live":
        said, ink = "◌ nothing new comes", "warn"
    elif board.timeline.mode == "live" and view.exited:
        said, ink = "● at its end", "dim"
    x0, x1 = seen  # a little wider than what there is, by whole dots
    x0 = there.first if board.timeline.mode == "all" else x0
    lead = ""
    if isinstance(axis, StepAxis):
        lead, x0 = "iterations ", max(0, x0)  # none has a number below zero, whatever is seen of the axis
    shown = [Span(f" {said}", ink), Span(f"   {lead}{axis.word(x0)} … {axis.word(min(x1, there.last))}")]
    by = "" if lead else "since the start " if axis.aligned else "time "
    kind = (GAP, Span(by, "dim"))
    cross = board.timeline.cross
    if cross is None:
        return (*shown, *kind)
    also = f"  iteration {numbers.grouped(iteration)}" if iteration is not None else ""
    if isinstance(axis, StepAxis):
        also = f"  {TimeAxis(view).word(axis.stamp(cross))}"
    least = (*shown, Span("   crosshair ", "dim"), Span(axis.word(cross), "strong"))
    whole = (*least, Span(also, "dim"))
    return first_fitting(((*whole, Span("  "), *kind), whole, least), width)
