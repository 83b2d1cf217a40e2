"""The targets of a run in one line: those that are missed first. Pure."""

from __future__ import annotations

from hoptui.domain.enumerations import ByValue
from hoptui.domain.targets import TargetState
from hoptui.presentation import job_head, targets
from hoptui.presentation.vocabulary import STANDINGS
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, pack, width_of

_INKS = ByValue({"missed": "warn", "met": "dim", "unknown": "dim"}, lambda _: "dim")
_RANKS = ByValue({"missed": 0, "unknown": 1, "met": 2}, lambda _: 1)


def line(view: View, width: int) -> list[Line]:
    """`⚠ busy ≥ 90 %: 71 %   ✓ power ≥ 600 W: 642 W`, as many as fit and how many do not; empty without
    targets.

    If room is short, only those that are missed have their mean.
    """
    states = _all(view)
    if not states:
        return []
    found = sorted(states, key=lambda state: _RANKS[state.standing])
    whole = [_chunk(view, state) for state in found]
    brief = [_chunk(view, state, brief=state.standing != "missed") for state in found]
    shapes = [whole, brief]
    shapes += [[*brief[:shown], _more(len(brief) - shown)] for shown in range(len(brief) - 1, 0, -1)]
    count = sum(state.standing == "missed" for state in states)
    few: Line = (Span(f"⚠ {count} missed", "warn"),) if count else (Span(f"{len(found)} targets", "dim"),)
    shapes.append([few])
    fitting = next((one for one in shapes if _length(one) <= width), shapes[-1])
    return pack(fitting, max(width, _length(fitting)))


def _more(count: int) -> Line:
    return (Span(f"and {count} more", "dim"),)


def _length(chunks: list[Line]) -> int:
    return sum(map(width_of, chunks)) + 3 * (len(chunks) - 1)


def missed(view: View) -> list[Line]:
    """One line for each target that is missed."""
    return [_chunk(view, state) for state in _all(view) if state.standing == "missed"]


def _all(view: View) -> tuple[TargetState, ...]:
    """The targets of the GPUs of this node, and those of the node of rank 0."""
    if view.run is None:
        return ()
    return (*view.run.targets, *(view.run.head.targets if view.run.head is not None else ()))


def _chunk(view: View, state: TargetState, *, brief: bool = False) -> Line:
    ink = _INKS[state.standing]
    gpus = view.node.gpus if view.node else ()
    own = [(gpu.uuid, gpu.index) for gpu in gpus if view.run and gpu.uuid in view.run.gpus]
    text = targets.goal(state.target) if brief else targets.standing(state, targets.index_of(state, own))
    if view.run is not None and view.run.head is not None and state in view.run.head.targets:
        text = job_head.dated(f"{text} on {job_head.name(view.run.head)}", view.vital)
    symbol = STANDINGS[state.standing].symbol
    return Span(f"{symbol} ", ink if state.standing != "met" else "good"), Span(text, ink)
