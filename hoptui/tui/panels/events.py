"""What happened, newest first: commands with who, from, to and effect, and the events of the run, its GPUs and the node."""

from __future__ import annotations

from hoptui.tui.lines import Line, Span, first_fitting
from hoptui.tui.panels import waiting
from hoptui.tui.panels.outcomes import STAGE_INKS, effect
from hoptui.tui.view import View
from hoptui.viewer import format as text
from hoptui.viewer import words
from hoptui.wire.messages import CommandRecord, Event

LEVEL_INKS = {"info": "", "warning": "warn", "alarm": "bad"}
LEVEL_SYMBOLS = {"info": "·", "warning": "⚠", "alarm": "✕"}


def lines(view: View, most: int, width: int) -> list[Line]:
    """The newest `most` things that happened to the run (to every run without one), to its GPUs and to its node.

    In `width` cells: of a command who gave it, then when it was applied, then the interval of its effect give way.
    """
    events = [e for e in view.store.events if concerns(view, e)]
    found: list[tuple[float, Line]] = [(e.wall, _event(view, e)) for e in events[-most:]]
    found += [(c.wall, _command(view, c, width)) for c in view.commands()[-most:]]
    found.sort(key=lambda item: item[0], reverse=True)
    return [line for _, line in found[:most]] or [waiting.line(view, "nothing has happened yet")]


def concerns(view: View, event: Event) -> bool:
    """Whether a view of a run is to show it: other runs and their GPUs are none of its business."""
    run = view.run
    if run is None:
        return True
    device, _, uuid = event.source.partition("/")
    return event.run in ("", run.run) and (device != "gpu" or not run.gpus or uuid in run.gpus)


def _event(view: View, event: Event) -> Line:
    ink = LEVEL_INKS[event.level]
    return (
        _when(event.wall),
        Span(f"{LEVEL_SYMBOLS[event.level]} ", ink or "dim"),
        *_where(view, event.run),
        *_device(view, event),
        Span(text.clean(event.text), ink),
        Span(f"  iteration {text.grouped(event.step)}" if event.step is not None else "", "dim"),
    )


def _command(view: View, record: CommandRecord, width: int) -> Line:
    ink = STAGE_INKS[record.stage]
    start: Line = (
        _when(record.wall),
        Span(f"{words.STAGES[record.stage].symbol} ", ink),
        *_where(view, record.run),
        Span(words.change(record)),
    )
    how = Span(f"  {words.stage_text(record)}", ink if ink != "good" else "dim")
    whole, brief = effect(record), effect(record, brief=True)
    who = Span(f"  {words.who(record.origin)}", "dim")
    why = f"  {text.clean(record.why, 60)}" if record.why and not record.why.startswith("undo of ") else ""
    gap = Span("  ")
    shown: list[Line] = [(*start, how, gap, *whole, who), (*start, how, gap, *whole)]
    if whole:
        shown += [(*start, gap, *whole), (*start, gap, *brief), start]
    found = first_fitting(shown, width)
    return (*found, Span(why, "dim")) if found == shown[0] else found


def _when(wall: float) -> Span:
    return Span(f"{text.clock(wall)}  ", "dim")


def _device(view: View, event: Event) -> Line:
    """`GPU 3` before a text that does not begin with it."""
    gpus = view.node.gpus if view.node else ()
    name = next((f"GPU {gpu.index}" for gpu in gpus if event.source == f"gpu/{gpu.uuid}"), "")
    return (Span(f"{name}  ", "dim"),) if name and not event.text.startswith(name) else ()


def _where(view: View, run: str) -> Line:
    """The run's name where the view is of all runs."""
    if view.run is not None or not run:
        return ()
    found = view.store.run(run)
    return (Span(f"{text.clean(found.name if found else run, 24)}  ", "dim"),)
