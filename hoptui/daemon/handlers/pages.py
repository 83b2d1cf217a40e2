"""Answers to viewers in pages: no part of an answer exceeds its share of the largest message, for any state.

A viewer continues where a page ended, because its cursors are the newest numbers that it has. A single item
that is larger than a share is sent without its large fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import msgpack, structs

from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuProcess, RunProcess
from hoptui.domain.facts import Fact
from hoptui.domain.line_counts import LineCounts
from hoptui.protocol.messages import HUNG, CommandRecord, Event, NodeState, RankLines, RunState, Vital

KIB = 1 << 10
VITALS, HARDWARE, RUNS, PROCESSES, TREE = 384 * KIB, 256 * KIB, 1024 * KIB, 192 * KIB, 64 * KIB
EVENTS, COMMANDS, ROWS = 384 * KIB, 512 * KIB, 1024 * KIB
"""Shares of a message, in bytes. With 256 KiB to spare they are `codec.MAX_ANSWER_BYTES`."""
LINES = 512 * KIB
"""The size of an answer with lines of code. One process takes less."""
LARGEST_RUN, LARGEST_ITEM, LARGEST_VITAL = 1000 * KIB, 192 * KIB, 4 * KIB
LONGEST_TEXT, LONGEST_NAME = 500, 100
TOO_LARGE = "too_large"
"""The code of an event or a command whose details are left out."""

T = TypeVar("T")
_encoder = msgpack.Encoder()


def size(item: object) -> int:
    """Return the bytes of an item in a message."""
    return len(_encoder.encode(item))


def first(items: Iterable[T], most: int, bytes_of: Callable[[T], int] = size) -> tuple[list[T], bool]:
    """Return as many items as fit into `most` bytes, and whether some are left."""
    found: list[T] = []
    left = most
    for item in items:
        left -= bytes_of(item)
        if left < 0:
            return found, True
        found.append(item)
    return found, False


def commands(records: Sequence[CommandRecord]) -> tuple[tuple[CommandRecord, ...], bool]:
    """Return the first records that fit, and whether some are left."""
    found, more = first(map(record, records), COMMANDS)
    return tuple(found), more


def record(full: CommandRecord) -> CommandRecord:
    """Return a record, without its details if they are too large. Values that are left out are unknown."""
    if size(full) <= LARGEST_ITEM:
        return full
    return structs.replace(
        full,
        knob=full.knob[:LONGEST_NAME],
        wanted=_short(full.wanted),
        before=_short(full.before),
        effective=_short(full.effective),
        options={},
        code=TOO_LARGE,
        fields={"code": full.code[:LONGEST_NAME]},
        reason=full.reason[:LONGEST_TEXT],
        why=full.why[:LONGEST_TEXT],
        purpose=(),
        measured=None,
        followed=(),
    )


def events(newer: Sequence[Event]) -> tuple[tuple[Event, ...], bool]:
    """Return the first events that fit, and whether some are left."""
    found, more = first(map(_event, newer), EVENTS)
    return tuple(found), more


def _event(full: Event) -> Event:
    if size(full) <= LARGEST_ITEM:
        return full
    return structs.replace(
        full,
        code=TOO_LARGE if full.code else "",
        fields={"code": full.code[:LONGEST_NAME]} if full.code else {},
        text=full.text[:LONGEST_TEXT],
        source=full.source[:LONGEST_NAME],
    )


def node(state: NodeState, page: int | None) -> tuple[NodeState, int]:
    """Return the state with its runs from number `page` on, as many as fit, and the number of the next one.

    The number is 0 after the last run. None stands for a viewer that knows no pages: then all runs are there,
    the larger ones without descriptions of knobs, or without knobs.
    """
    if len(state.gpus) > 1 and size(state.gpus) > HARDWARE:
        state = structs.replace(state, gpus=tuple(first(state.gpus, HARDWARE)[0]))
    if page is None:
        return structs.replace(state, runs=_all(state.runs)), 0
    found, more = first(map(_run, state.runs[page:]), RUNS)
    return structs.replace(state, runs=tuple(found)), page + len(found) if more else 0


def _all(runs: Sequence[RunState]) -> tuple[RunState, ...]:
    """Return runs for a viewer that knows no pages, in one page."""
    for reduced in (lambda run: run, _undescribed, _bare):
        found, more = first(map(reduced, runs), RUNS)
        if not more:
            return tuple(found)
    return tuple(reversed(first(map(_bare, reversed(runs)), RUNS)[0]))


def _run(full: RunState) -> RunState:
    for reduced in (lambda run: run, _undescribed):
        if size(found := reduced(full)) <= LARGEST_RUN:
            return found
    return _bare(full)


def _undescribed(run: RunState) -> RunState:
    knobs = (
        structs.replace(knob, spec=structs.replace(knob.spec, description="", keeps="")) for knob in run.knobs
    )
    return structs.replace(run, knobs=tuple(knobs))


def _bare(run: RunState) -> RunState:
    return RunState(
        run=run.run,
        name=run.name[:LONGEST_NAME],
        epoch=run.epoch,
        pid=run.pid,
        started_wall=run.started_wall,
        total=run.total,
        rank=run.rank,
        world=run.world,
        exit_reason=run.exit_reason[:LONGEST_NAME],
        exit_detail=run.exit_detail[:LONGEST_TEXT],
        exited_wall=run.exited_wall,
        recording=run.recording[:LONGEST_TEXT],
    )


def vitals(full: Mapping[str, Vital]) -> dict[str, Vital]:
    """Return the vitals, those of live runs first if they are too many."""
    if size(full) <= VITALS:
        return dict(full)
    by_life = sorted(full, key=lambda run: full[run].state == "exited")
    found, _ = first(((run, _vital(full[run])) for run in by_life), VITALS)
    return dict(found)


def _vital(full: Vital) -> Vital:
    if size(full) <= LARGEST_VITAL:
        return full
    because = Fact(full.because.code[:LONGEST_NAME]) if full.because is not None else None
    if because is not None and because.code == "state.in_phase":
        because = Fact(because.code, {"phase": full.phase[:LONGEST_NAME], "age_s": full.phase_age_s})
    elif because is not None and because.code == HUNG:
        because = Fact(because.code, {"age_s": full.progress_age_s})
    return structs.replace(full, phase=full.phase[:LONGEST_NAME], phases=(), because=because)


def processes(full: Sequence[GpuProcess]) -> tuple[GpuProcess, ...]:
    """Return the first processes that fit."""
    return tuple(first(full, PROCESSES)[0])


def tree(full: Sequence[RunProcess]) -> tuple[RunProcess, ...]:
    """Return the first processes of runs that fit."""
    return tuple(first(full, TREE)[0])


def rows(part: Columns, left: int) -> tuple[Columns, bool]:
    """Return the first rows that fit into `left` bytes, at least one, and whether some are left.

    Names that do not fit into the message are left out.
    """
    if 2 * weight(part) <= left:  # all rows fit, and so do the names into their half
        return part, False
    names, _ = first(part.names, left // 2, lambda name: len(name.encode()) + 24)
    if len(names) < len(part.names):
        part = structs.replace(part, names=tuple(names), values=part.values[: len(names)])
    most = max(1, (left - sum(len(name.encode()) + 8 for name in names)) // (8 * (len(names) + 2)))
    return (part.slice(0, most), True) if len(part) > most else (part, False)


def weight(part: Columns) -> int:
    """Return at least the bytes of rows in a message."""
    return (len(part.names) + 2) * (8 * len(part) + 8) + sum(len(n.encode()) + 8 for n in part.names)


def lines(found: Iterable[tuple[int, LineCounts]], most: int) -> tuple[tuple[RankLines, ...], int]:
    """Return the lines of the first processes, at most `most`, and the rank that the next page begins with.

    It is -1 after the last one.
    """
    page: list[RankLines] = []
    left = LINES
    for rank, counts in found:
        item = RankLines(rank=rank, counts=counts)
        left -= size(item)
        if len(page) == most or left < 0:
            return tuple(page), rank
        page.append(item)
    return tuple(page), -1


def _short(value: bool | float | str | None) -> bool | float | str | None:
    return None if isinstance(value, str) and len(value) > LONGEST_TEXT else value
