"""The text of the history screen: the commands of a run as a list, and all details of one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, overload

from hoptui.model.command_history import UNDO, again, named, reason
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.authors import author, author_word
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tui.components.events import STAGE_INKS, effect, stage
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, first_fitting

LABEL = 12
EFFECT = "effect"
MARGIN, GAP, SYMBOL, MOST_EFFECT = 2, 2, 3, 32
LOOKED_AT = 200  # commands whose texts decide how wide the columns are
SURE = (
    "± holds 95 times in 100: medians of blocks of five iterations before and after, the first ones left out"
)


class HistoryColumns(NamedTuple):
    """Cells of each column with the gap after it, 0 if there is no room for it; `pids`: authors shown with
    the process.
    """

    time: int
    run: int
    who: int
    change: int
    stage: int
    at: int
    speed: int
    pids: bool = False


_SHAPES = (
    "pid at speed who stage",
    "at speed who stage",
    "speed who stage",
    "pid at who stage",
    "at who stage",
    "who stage",
    "who",
    "",
)
"""The columns by value: an effect is worth more than the iteration, and both sides of it more than the pid.
"""


def columns(view: View, records: Sequence[CommandRecord], width: int) -> HistoryColumns:
    """Columns as wide as the longest text among the newest, and as many columns as leave the effects
    complete.
    """
    newest = [view.as_left(record) for record in records[:LOOKED_AT]]
    effects = max(
        len(EFFECT) + GAP,
        _cells(0, MOST_EFFECT, ("".join(span.text for span in effect(record)) for record in newest)),
    )
    widest = HistoryColumns(
        time=10 if all(_is_today(view, record) for record in newest) else 13,
        run=_cells(0, 16, (_run(view, record) for record in newest)),
        who=_cells(3, 24, (_who(record, True) for record in newest)),
        change=_cells(7, 34, (vocabulary.change(record) for record in newest)),
        stage=_cells(6, 13, map(_stage, newest)),
        at=_cells(2, 10, map(_at, newest)),
        speed=_cells(10, 32, (_speeds(view, record) for record in newest)),
        pids=True,
    )
    short = _cells(3, 24, (_who(record, False) for record in newest))
    shaped = [_shaped(widest, short, shape) for shape in _SHAPES]
    found = next((cells for cells in shaped if _spare(cells, effects, width) >= 0), shaped[-1])
    change = found.change + max(0, _spare(found, effects, width))
    return found._replace(change=min(change, widest.change))


def _spare(cells: HistoryColumns, effects: int, width: int) -> int:
    """The cells that are left beside the columns and the longest effect."""
    return width + GAP - MARGIN - sum(cells[:-1]) - effects


def _shaped(widest: HistoryColumns, short: int, shape: str) -> HistoryColumns:
    """The columns of one shape; `short` is the room for who without the process."""
    return widest._replace(
        who=(widest.who if "pid" in shape else short) if "who" in shape else 0,
        change=widest.change if "who" in shape else min(widest.change, 26 + GAP),
        stage=widest.stage if "stage" in shape else SYMBOL,
        at=widest.at if "at" in shape else 0,
        speed=widest.speed if "speed" in shape else 0,
        pids="pid" in shape,
    )


def head(cells: HistoryColumns) -> Line:
    """The names of the columns."""
    result = "result" if cells.stage > SYMBOL else ""
    names = ("time", "run", "who", "command", result, "at", "throughput")
    shown = [Span(name, "dim", wide) for name, wide in zip(names, cells[:-1], strict=True) if wide]
    return Span("  "), *shown, Span(EFFECT, "dim")


class CommandRows(Sequence[Line]):
    """One line a command, made only when it is looked at: there may be thousands, and a screen shows some."""

    def __init__(
        self, view: View, records: Sequence[CommandRecord], cells: HistoryColumns, cursor: int, width: int
    ) -> None:
        self._view = view
        self._records = records
        self._cells = cells
        self._cursor = cursor
        self._room = width - MARGIN - sum(cells[:-1])

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> list[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | list[Line]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        record = self._view.as_left(self._records[index])
        return _row(self._view, record, self._cells, self._room, chosen=index == self._cursor)


def story(view: View, record: CommandRecord, width: int, known: Mapping[str, CommandRecord]) -> list[Line]:
    """All that is known of one command, with the line that repeats it; `known` has all commands by id."""
    record = view.as_left(record)
    run = view.store.run(record.run)
    knob = next((k for k in run.knobs if k.spec.name == record.knob), None) if run else None
    found = [
        ("command", Span(f"{'set ' if record.verb == 'set' else ''}{vocabulary.change(record)}", "strong"))
    ]
    restart = vocabulary.restart(record.epoch)
    name = numbers.clean(run.name if run else record.run, 40)
    found.append(("run", Span(f"{name}, {restart}" if restart else name)))
    client = f", {numbers.clean(record.origin.client, 24)}" if record.origin.client else ""
    found.append(("asked", Span(f"{numbers.day_clock(record.wall)} by {author(record.origin)}{client}")))
    if record.why or record.purpose:
        found.append(("why", Span(reason(record, known))))
    took_s = (record.settled - record.t) / 1e9 if record.settled else None
    later = (
        f", {numbers.seconds(max(took_s, 0.001))} later"
        if took_s is not None and record.stage in FINAL
        else ""
    )
    found.append(("result", stage(record)._replace(text=f"{stage(record).text}{later}")))
    if record.effective is not None:
        version = f" (version {record.version})" if record.version is not None else ""
        value = numbers.value(record.effective, knob.spec if knob else None)
        found.append(("value", Span(f"{value} read back from the run{version}")))
    if undone := _undone(record, known):
        found.append(("undone", Span(undone)))
    found += _measured(view, record)
    if run is not None:
        found.append(("again", Span(again(record, named(run, view.node)), "key")))
    return [line for label, span in found for line in _wrapped(label, span, width)]


def _measured(view: View, record: CommandRecord) -> list[tuple[str, Span]]:
    """What a change did to the throughput; where nothing is known, that it is not."""
    if record.verb != "set" or record.stage != "applied":
        return []
    if record.measured is None:
        return [("effect", Span("not measured", "dim"))]
    found = []
    if speeds := _speeds(view, record):
        after = record.measured.iterations if record.measured.gain is not None else 0
        over = f" (medians; {after} iterations after it)" if after else ""
        found.append(("throughput", Span(f"{speeds}{over}")))
    found += [("effect", span) for span in effect(record)]
    if record.measured.gain is not None:
        found.append(("", Span(SURE, "faint")))
    return found


def _row(view: View, record: CommandRecord, cells: HistoryColumns, room: int, *, chosen: bool) -> Line:
    """One line; the effect gets the `room` left by the columns, without its interval if that would be cut."""
    when = numbers.clock(record.wall) if cells.time < 13 else numbers.day_clock(record.wall)[5:16]
    ink = STAGE_INKS[record.stage]
    spans = [Span("› " if chosen else "  ", "key"), Span(when, "dim", cells.time)]
    spans += [Span(_run(view, record), "dim", cells.run)] if cells.run else []
    spans += [Span(_who(record, cells.pids), "", cells.who)] if cells.who else []
    spans.append(Span(vocabulary.change(record), "strong" if chosen else "", cells.change))
    spans.append(
        Span(
            _stage(record) if cells.stage > SYMBOL else vocabulary.stage_word(record).symbol,
            ink if ink != "good" else "dim",
            cells.stage,
        )
    )
    spans += [Span(_at(record), "dim", cells.at)] if cells.at else []
    spans += [Span(_speeds(view, record), "", cells.speed)] if cells.speed else []
    remark = vocabulary.remark(record)
    whole = effect(record)
    rest = first_fitting((whole, effect(record, brief=True) or whole), room) or (
        (Span(remark, "warn" if record.stage != "applied" else "dim"),) if remark else ()
    )
    return (*spans, *rest)


def _wrapped(label: str, span: Span, width: int) -> list[Line]:
    room = max(16, width - LABEL)
    lines = textwrap.wrap(span.text, room, replace_whitespace=False, break_on_hyphens=False) or [""]
    return [
        (Span(label if not i else "", "dim", LABEL), Span(line, span.ink)) for i, line in enumerate(lines)
    ]


def _undone(record: CommandRecord, known: Mapping[str, CommandRecord]) -> str:
    """By whom and when a change was set back, if it was."""
    for other in known.values():
        if other.why == f"{UNDO}{record.id}" and other.stage == "applied":
            return f"{numbers.clock(other.wall)} by {author(other.origin)}"
    return ""


def _speeds(view: View, record: CommandRecord) -> str:
    run = view.store.run(record.run)
    return vocabulary.speeds(record.measured, run.units if run else {})


def _who(record: CommandRecord, pids: bool) -> str:
    return author(record.origin) if pids else author_word(record.origin)


def _stage(record: CommandRecord) -> str:
    return " ".join(vocabulary.stage_word(record))


def _at(record: CommandRecord) -> str:
    return numbers.grouped(record.step) if record.step is not None else ""


def _run(view: View, record: CommandRecord) -> str:
    """The run's name where the view is of all runs."""
    if view.run is not None:
        return ""
    found = view.store.run(record.run)
    return numbers.clean(found.name if found else record.run, 24)


def _is_today(view: View, record: CommandRecord) -> bool:
    return numbers.day_clock(record.wall)[:10] == numbers.day_clock(view.wall)[:10]


def _cells(least: int, most: int, texts: Iterable[str]) -> int:
    """Room for the longest of some texts and the gap after it; none where there is nothing to show at all."""
    longest = max(map(len, texts), default=0)
    return min(max(least, longest), most) + GAP if longest else 0
