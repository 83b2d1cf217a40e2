"""What can be chosen, in a line, with a mark at what is chosen. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hoptui.tui.styled_text import Line, Span, width_of


def option(text: str, *, chosen: bool) -> Line:
    """One of several."""
    return Span(" ›" if chosen else "  ", "key"), Span(text, "strong" if chosen else "dim")


def ranks(line: Line, found: Sequence[int], chosen: int | None, width: int, *, all_ranks: bool) -> Line:
    """A line with the ranks behind it, as many as fit. `all_ranks`: all together can be chosen, as None."""
    line = (*line, Span("   ranks"))
    if all_ranks:
        line = (*line, *option("all", chosen=chosen is None))
    shown = list(found)
    if chosen is not None and width_of(line) + 5 * len(shown) > width:
        shown = [chosen]
    for each in shown:
        added = option(str(each), chosen=each == chosen)
        if width_of(line) + width_of(added) > width - 2:
            return (*line, Span(" …", "dim"))
        line = (*line, *added)
    return line
