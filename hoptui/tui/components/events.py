"""Events of a run or node as lines, and the outcome of a command: its stage and its measured effect. Pure."""

from __future__ import annotations

import re
import textwrap

from hoptui.domain.enumerations import ByValue
from hoptui.domain.tuning import Measured
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.protocol.authors import author
from hoptui.protocol.messages import CommandRecord, Event, Stage
from hoptui.tui.components import figures
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, first_fitting, width_of

STAGE_INKS: dict[Stage, str] = ByValue(
    {
        "sent": "2",
        "accepted": "2",
        "scheduled": "2",
        "applied": "good",
        "rejected": "bad",
        "superseded": "warn",
        "expired": "warn",
        "failed": "bad",
        "reverted": "bad",
        "voided": "warn",
    },
    lambda _: "warn",
)


def stage(record: CommandRecord) -> Span:
    """`◷ scheduled for 1 205`, in the ink of the stage."""
    return Span(
        f"{vocabulary.stage_word(record).symbol} {vocabulary.stage_text(record)}", STAGE_INKS[record.stage]
    )


def stages(record: CommandRecord) -> tuple[Span, Span, Span]:
    """The stage with all that is known of it, as its word, and as its symbol alone."""
    word = vocabulary.stage_word(record)
    whole = stage(record)
    return whole, whole._replace(text=f"{word.symbol} {word.text}"), whole._replace(text=word.symbol)


def course(record: CommandRecord, width: int) -> Line:
    """The stage and effect of a change, in `width` cells: without the iteration, then the interval, if they
    do not fit.
    """
    shown = stages(record)
    effects = filter(None, (effect(record), effect(record, brief=True)))
    both = [(one, Span("  "), *each) for each in effects for one in shown]
    return first_fitting([*both, *((one,) for one in shown)], width)


def effect(record: CommandRecord | None, *, shared: bool = True, brief: bool = False) -> Line:
    """Return the effect of a command, as `measured_effect` shows it; empty if it is not measured."""
    return measured_effect(record.measured if record is not None else None, shared=shared, brief=brief)


def measured_effect(measured: Measured | None, *, shared: bool = True, brief: bool = False) -> Line:
    """`▲ +6.1 % ± 1.2`, `no detectable change (± 1.8 %)`, the progress of the measurement, or nothing.

    `brief` leaves the interval out. An effect that other processes may have caused is no gain or loss.
    """
    text = vocabulary.effect_text(measured, shared=shared, brief=brief)
    if measured is None or not text:
        return ()
    gain = measured.gain or 0.0
    if not measured.detectable or vocabulary.unclear(measured):
        return (Span(text, "dim"),)
    return (Span(f"▲ {text}", "good"),) if gain > 0 else (Span(f"▼ {text}", "warn"),)


def last_change(view: View, width: int) -> Line:
    """The effect of the run's last change, and its knob; if room is short only the name or the effect. Empty
    without one.
    """
    record = view.last_change()
    most = effect(record, shared=False)
    # The last one is cut: an empty line would look like no effect.
    fitting = first_fitting((most, effect(record, brief=True) or most, most), width)
    if record is None:
        return ()
    if record.measured is None or not fitting:
        # It is measured from the next iteration on, if the run logs a throughput.
        yet = "" if view.exited else " yet"
        return (Span(f"{vocabulary.change(record)}: effect not measured{yet}", "dim"),)
    room = width - width_of(fitting)
    whole, short = f" since {vocabulary.change(record)}", f" since {numbers.clean(record.knob)}"
    least = " since the last change"
    if record.measured.gain is not None and (
        with_it := sentences.remarks(record.measured)
    ):  # never attribute it to this change alone
        whole, codes = f"{whole}, {with_it}", {each.code for each in record.measured.remarks}
        if not codes or codes - vocabulary.CONTENDED:  # other knobs were changed, not only other loads
            short, least = f"{short} and others", f"{least}s"
    return (*fitting, Span(next((which for which in (whole, short, least) if len(which) <= room), ""), "dim"))


def unmeasured(view: View, what: str) -> Line:
    """Return `no change is measured yet`, or that none was if the run has ended; empty without a run."""
    text = f"{what} was measured" if view.exited else f"{what} is measured yet"
    return (Span(text if view.run else "", "faint"),)


LEVEL_INKS = ByValue({"info": "", "warning": "warn", "alarm": "bad"}, lambda _: "warn")
LEVEL_SYMBOLS = ByValue({"info": "·", "warning": "⚠", "alarm": "✕"}, lambda _: "?")
ROOMY = 6  # with at least this many lines, an event is wrapped instead of cut
IN_NUMBERS, NO_BREAK = re.compile(r"(?<=\d) (?=\d{3}(?!\d))"), "\u00a0"
LEAST_TEXT = 20  # least cells for the text of an event


def lines(view: View, most: int, width: int) -> list[Line]:
    """The newest events of the run (of every run without one), its GPUs and its node, in `most` lines.

    If `width` cells are too few, a command loses its author, then the time when it was applied, then the
    interval of its effect. An event loses the iteration; then it is cut, unless there is room for more lines.
    """
    events = [e for e in view.store.events if concerns(view, e)]
    found = [(e.wall, _event(view, e, width, whole=most >= ROOMY)) for e in events[-most:]]
    found += [(c.wall, _command(view, c, width, whole=most >= ROOMY)) for c in view.commands()[-most:]]
    found.sort(key=lambda item: item[0], reverse=True)
    listed = [line for _, each in found for line in each]
    return listed[:most] or [figures.missing_line(view, "nothing has happened yet")]


def concerns(view: View, event: Event) -> bool:
    """Return whether a view of a run shows an event. It omits other runs and their GPUs."""
    run = view.run
    if run is None:
        return True
    device, _, uuid = event.source.partition("/")
    return event.run in ("", run.run) and (device != "gpu" or not run.gpus or uuid in run.gpus)


def _event(view: View, event: Event, width: int, *, whole: bool) -> list[Line]:
    """Return an event as one line, or wrapped if `whole`."""
    ink = LEVEL_INKS[event.level]
    start: Line = (
        _when(event.wall),
        Span(f"{LEVEL_SYMBOLS[event.level]} ", ink or "dim"),
        *_where(view, event.run),
        *_device(view, event),
    )
    text = vocabulary.happened(event)
    at = (Span(f"  iteration {numbers.grouped(event.step)}", "dim"),) if event.step is not None else ()
    found = first_fitting([(*start, Span(text, ink), *at), (*start, Span(text, ink))], width)
    return _wrapped(start, Span(text, ink), width) if whole and width_of(found) > width else [found]


def _command(view: View, record: CommandRecord, width: int, *, whole: bool) -> list[Line]:
    """Return a command with its outcome as one line, or wrapped if `whole`."""
    ink = STAGE_INKS[record.stage]
    start: Line = (
        _when(record.wall),
        Span(f"{vocabulary.stage_word(record).symbol} ", ink),
        *_where(view, record.run),
        Span(vocabulary.change(record)),
    )
    how = Span(f"  {vocabulary.stage_text(record)}", ink if ink != "good" else "dim")
    done, brief = effect(record), effect(record, brief=True)
    gap = Span("  ")
    did = (gap, *done) if done else ()
    who = Span(f"  {author(record.origin)}", "dim")
    purpose = "" if record.why.startswith("undo of ") else numbers.clean(sentences.purpose(record), 60)
    why = f"  {purpose}" if purpose else ""
    least = done[0] if done else how._replace(text=how.text.strip())  # an effect is one span
    if whole and width_of((*start, gap, least)) > width:
        return _wrapped((*start, gap), least, width)
    shown: list[Line] = [(*start, how, *did, who), (*start, how, *did)]
    if done:
        shown += [(*start, *did), (*start, gap, *brief), start]
    found = first_fitting(shown, width)
    return [(*found, Span(why, "dim")) if found == shown[0] else found]


def _wrapped(start: Line, text: Span, width: int) -> list[Line]:
    """`start` and a text in as many lines as it needs, indented so that the subject stays visible."""
    indent = width_of(start[:2])
    room = width - indent
    ahead = width_of(start) - indent
    if room - ahead < LEAST_TEXT:
        return [(*start, text)]
    whole_numbers = IN_NUMBERS.sub(NO_BREAK, text.text)
    found = textwrap.wrap(whole_numbers, room, initial_indent=" " * ahead, break_on_hyphens=False)
    first, *more = (line.replace(NO_BREAK, " ") for line in found)
    return [
        (*start, text._replace(text=first[ahead:])),
        *((Span("", "", indent), text._replace(text=line)) for line in more),
    ]


def _when(wall: float) -> Span:
    return Span(f"{numbers.clock(wall)}  ", "dim")


def _device(view: View, event: Event) -> Line:
    """`GPU 3` before a text that does not begin with it."""
    gpus = view.node.gpus if view.node else ()
    name = next((f"GPU {gpu.index}" for gpu in gpus if event.source == f"gpu/{gpu.uuid}"), "")
    return (Span(f"{name}  ", "dim"),) if name and not sentences.event_text(event).startswith(name) else ()


def _where(view: View, run: str) -> Line:
    """Return the run's name if the view is of all runs."""
    if view.run is not None or not run:
        return ()
    found = view.store.run(run)
    return (Span(f"{numbers.clean(found.name if found else run, 24)}  ", "dim"),)
