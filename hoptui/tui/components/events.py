"""What happened, newest first: commands with who, from, to and effect, and the events of the run, its GPUs and the node."""

from __future__ import annotations

import re
import textwrap

from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.protocol.authors import author
from hoptui.protocol.messages import CommandRecord, Event
from hoptui.tui.components import empty_state
from hoptui.tui.components.command_outcome import STAGE_INKS, effect
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, first_fitting, width_of

LEVEL_INKS = {"info": "", "warning": "warn", "alarm": "bad"}
LEVEL_SYMBOLS = {"info": "·", "warning": "⚠", "alarm": "✕"}
ROOMY = 6  # lines from which on an event is told to its end, in several if need be
IN_NUMBERS, NO_BREAK = re.compile(r"(?<=\d) (?=\d{3}(?!\d))"), "\u00a0"
LEAST_TEXT = 20  # cells that an event is wrapped to


def lines(view: View, most: int, width: int) -> list[Line]:
    """The newest things that happened to the run (to every run without one), to its GPUs and to its node, in `most` lines.

    In `width` cells: of a command who gave it, then when it was applied, then the interval of its effect give way; of an event the
    iteration does, and then it is cut unless there is room for more lines.
    """
    events = [e for e in view.store.events if concerns(view, e)]
    found = [(e.wall, _event(view, e, width, whole=most >= ROOMY)) for e in events[-most:]]
    found += [(c.wall, _command(view, c, width, whole=most >= ROOMY)) for c in view.commands()[-most:]]
    found.sort(key=lambda item: item[0], reverse=True)
    told = [line for _, each in found for line in each]
    return told[:most] or [empty_state.line(view, "nothing has happened yet")]


def concerns(view: View, event: Event) -> bool:
    """Whether a view of a run is to show it: other runs and their GPUs are none of its business."""
    run = view.run
    if run is None:
        return True
    device, _, uuid = event.source.partition("/")
    return event.run in ("", run.run) and (device != "gpu" or not run.gpus or uuid in run.gpus)


def _event(view: View, event: Event, width: int, *, whole: bool) -> list[Line]:
    """One line, or as many as it takes to tell the `whole`."""
    ink = LEVEL_INKS[event.level]
    start: Line = (
        _when(event.wall),
        Span(f"{LEVEL_SYMBOLS[event.level]} ", ink or "dim"),
        *_where(view, event.run),
        *_device(view, event),
    )
    told = vocabulary.happened(event)
    at = (Span(f"  iteration {numbers.grouped(event.step)}", "dim"),) if event.step is not None else ()
    found = first_fitting([(*start, Span(told, ink), *at), (*start, Span(told, ink))], width)
    return _wrapped(start, Span(told, ink), width) if whole and width_of(found) > width else [found]


def _command(view: View, record: CommandRecord, width: int, *, whole: bool) -> list[Line]:
    """One line, or as many as it takes to tell the `whole` of what became of it."""
    ink = STAGE_INKS[record.stage]
    start: Line = (
        _when(record.wall),
        Span(f"{vocabulary.STAGES[record.stage].symbol} ", ink),
        *_where(view, record.run),
        Span(vocabulary.change(record)),
    )
    how = Span(f"  {vocabulary.stage_text(record)}", ink if ink != "good" else "dim")
    done, brief = effect(record), effect(record, brief=True)
    gap = Span("  ")
    did = (gap, *done) if done else ()
    who = Span(f"  {author(record.origin)}", "dim")
    why = f"  {numbers.clean(record.why, 60)}" if record.why and not record.why.startswith("undo of ") else ""
    least = done[0] if done else how._replace(text=how.text.strip())  # an effect is one span
    if whole and width_of((*start, gap, least)) > width:
        return _wrapped((*start, gap), least, width)
    shown: list[Line] = [(*start, how, *did, who), (*start, how, *did)]
    if done:
        shown += [(*start, *did), (*start, gap, *brief), start]
    found = first_fitting(shown, width)
    return [(*found, Span(why, "dim")) if found == shown[0] else found]


def _wrapped(start: Line, told: Span, width: int) -> list[Line]:
    """What begins with `start`, and a text in as many lines as it takes, under the room for what tells what it is about."""
    indent = width_of(start[:2])
    room = width - indent
    ahead = width_of(start) - indent
    if room - ahead < LEAST_TEXT:
        return [(*start, told)]
    whole_numbers = IN_NUMBERS.sub(NO_BREAK, told.text)
    found = textwrap.wrap(whole_numbers, room, initial_indent=" " * ahead, break_on_hyphens=False)
    first, *more = (line.replace(NO_BREAK, " ") for line in found)
    return [
        (*start, told._replace(text=first[ahead:])),
        *((Span("", "", indent), told._replace(text=line)) for line in more),
    ]


def _when(wall: float) -> Span:
    return Span(f"{numbers.clock(wall)}  ", "dim")


def _device(view: View, event: Event) -> Line:
    """`GPU 3` before a text that does not begin with it."""
    gpus = view.node.gpus if view.node else ()
    name = next((f"GPU {gpu.index}" for gpu in gpus if event.source == f"gpu/{gpu.uuid}"), "")
    return (Span(f"{name}  ", "dim"),) if name and not sentences.event_text(event).startswith(name) else ()


def _where(view: View, run: str) -> Line:
    """The run's name where the view is of all runs."""
    if view.run is not None or not run:
        return ()
    found = view.store.run(run)
    return (Span(f"{numbers.clean(found.name if found else run, 24)}  ", "dim"),)
