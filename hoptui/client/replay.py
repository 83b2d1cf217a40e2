"""Plays a recording: a position that moves with a clock, and the dashboard's connection at that position."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

from hoptui.client.client import Link
from hoptui.client.conversation import NO_LIMITS, Details, TuneOp
from hoptui.client.line_reader import LineReader
from hoptui.domain.devices import Level
from hoptui.domain.line_counts import FoundLines
from hoptui.domain.tuning import Limits, Tuned
from hoptui.model.outputs import FoundOutput
from hoptui.model.recorded.store import RecordedStore
from hoptui.node.processes import user_name
from hoptui.presentation import numbers
from hoptui.protocol.messages import CommandRecord, Origin, Verb
from hoptui.protocol.ranges import MOST_STAMP
from hoptui.recording import Recording

SECOND = 1_000_000_000
SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 1000.0)
WHOLE_S = 180.0  # default speed: the least of SPEEDS that plays the recording within this time, if any
APART_S = 1.0  # events within this time are one stop of `step_event`


class Tick(NamedTuple):
    """A mark on the time axis: a command, or an event of a level."""

    t: int
    kind: Level | Literal["command"]


class Reel(NamedTuple):
    """The state of a replay. Stamps are the recording's. `ticks` are all of its events and commands, in
    order. `clocks` has a sentence on the clock of each file that is joined with it."""

    playing: bool
    speed: float
    position: int
    start: int
    end: int
    wall_offset_ns: int
    path: str
    ticks: tuple[Tick, ...]
    clocks: tuple[str, ...] = ()

    def wall(self, t: int) -> float:
        """Return a stamp as seconds since 1970."""
        return (t + self.wall_offset_ns) / SECOND


class Replay:
    """A connection (`hoptui.tui.snapshot.ViewerClient`) to a recording. `clock` is seconds, monotonic.

    Only `advance` moves the position while playing, so a frame shows one position. Used by one thread.

    `more` are recordings of other nodes of the same run.

    Raises:
        RecordingError: a file is not a recording, cannot be read, or is empty.
        JoinError: the recordings are not of one run, or of one node.
    """

    read_only = True  # the run is in the past

    def __init__(
        self,
        path: str | Path,
        *,
        more: Sequence[str | Path] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opened: list[Recording] = []
        self._clocks: tuple[str, ...] = ()
        try:
            for one in (path, *more):
                self._opened.append(Recording.open(Path(one)))
            self.store = self._store()
        except BaseException:
            self.close()
            raise
        self._recording = self.store.pages.recording
        self._path = self._recording.path
        self._clock = clock
        self._lines = LineReader()
        self._sampled = bool(self._recording.minutes()[0])
        self._wall_offset_ns = self._recording.wall_offset_ns
        start, end = self.store.span
        self.playing = False
        self.speed = next((s for s in SPEEDS if s >= max(1.0, (end - start) / SECOND / WHOLE_S)), SPEEDS[-1])
        self._exact = float(start)  # the position with its fraction of a ns
        self._played_at = clock()
        self._opened_at = clock()
        chronicle = self.store.chronicle
        ticks = [Tick(event.t, event.level) for event in chronicle.events]
        ticks += [Tick(record.settled or record.t, "command") for record in chronicle.commands]
        self._ticks = tuple(sorted(ticks))
        self._stops = _stops(chronicle.moments)

    def _store(self) -> RecordedStore:
        if len(self._opened) == 1:
            return RecordedStore(self._opened[0])
        from hoptui.model.recorded.joined import JoinedStore

        joined = JoinedStore(self._opened)
        self._clocks = tuple(joined.clock_notes())
        return joined

    # the connection -----------------------------------------------------------------------------------------

    @property
    def link(self) -> Link:
        """Live as long as the recording can be read."""
        problem = self.store.problem
        return Link("failed" if problem else "live", self._opened_at, problem)

    def start(self) -> None:
        """Begin to play."""
        self.play()

    def close(self) -> None:
        """Close the recordings."""
        for recording in self._opened:
            recording.close()

    def watch(self, run: str | None) -> None:
        """Do nothing: rows are read on demand."""

    def add_note(self, run_id: str, text: str) -> None:
        """Do nothing: a replay only looks."""

    def describe(self, run_id: str) -> None:
        """Do nothing: `store.details` has what is recorded."""

    def fetch_lines(self, run_id: str, *, every_rank: bool = False, whole: bool = False) -> None:
        """Read where the time of the run went, in a thread: in the minute around the position, or up to it.

        `store.lines` gets the answer.
        """
        found, t = self.store.lines.get((run_id, whole)), self.position
        if not self._sampled and found is None:
            self.store.apply_lines(run_id, FoundLines(t1=MOST_STAMP), whole=whole)
        elif found is None or not found.t0 <= t <= found.t1:
            self._lines.ask(self._path, t, partial(self.store.apply_lines, run_id, whole=whole), whole=whole)

    def fetch_output(self, run_id: str, rank: int) -> None:
        """Say that output is not recorded."""
        self.store.outputs = {run_id: FoundOutput(rank, problem="not_recorded")}

    def sample(self, hz: float) -> None:
        """Do nothing: there is no sampling."""

    def pace(self, seconds: float) -> None:
        """Do nothing: there are no requests."""

    def send(self, verb: Verb, run_id: str, **details: Unpack[Details]) -> str:
        """Refuse a command. `store.commands` has the refusal under the returned id."""
        run, now = self.store.run(run_id), self.store.now()
        record = CommandRecord(
            id=os.urandom(8).hex(),
            run=run_id,
            epoch=run.epoch if run else 0,
            verb=verb,
            knob=details.get("knob", ""),
            wanted=details.get("value"),
            options=details.get("options", {}),
            stage="rejected",
            code="recording",
            origin=Origin(user=user_name(), pid=os.getpid(), client="replay"),
            why=details.get("why", ""),
            t=now,
            wall=self.reel.wall(now),
            settled=now,
        )
        self.store.refuse(record)
        return record.id

    def renew_pause(self, run_id: str) -> None:
        """Do nothing: a recording cannot be paused."""

    def tune(self, run_id: str, op: TuneOp, *, knob: str = "", limits: Limits = NO_LIMITS) -> None:
        """Refuse to tune. `store.tuned` has the refusal."""
        self.store.tuned = {
            **self.store.tuned,
            run_id: Tuned(id=0, run=run_id, granted=False, code="recording"),
        }

    # playing ------------------------------------------------------------------------------------------------

    @property
    def reel(self) -> Reel:
        """The current state of the replay."""
        start, end = self.store.span
        return Reel(
            self.playing,
            self.speed,
            self.position,
            start,
            end,
            self._wall_offset_ns,
            str(self._path),
            self._ticks,
            self._clocks,
        )

    @property
    def position(self) -> int:
        """The stamp for which the store answers."""
        return self.store.now()

    def advance(self) -> None:
        """Move the position by the time that has passed. Playing ends at the end of the recording."""
        now = self._clock()
        passed, self._played_at = now - self._played_at, now
        if not self.playing:
            return
        self._move(self._exact + passed * self.speed * SECOND)
        if self.position >= self.store.span[1]:
            self.playing = False

    def play(self) -> None:
        """Play from the position; at the end, from the start."""
        if self.position >= self.store.span[1]:
            self._move(self.store.span[0])
        self._played_at = self._clock()
        self.playing = True

    def pause(self) -> None:
        """Stop playing at the position."""
        self.advance()
        self.playing = False

    def seek(self, t: int) -> None:
        """Move to a stamp, clamped to the recording."""
        self._played_at = self._clock()
        self._move(t)

    def jump(self, seconds: float) -> None:
        """Move the position by some seconds, negative for back."""
        self.seek(self.position + round(seconds * SECOND))

    def set_speed(self, speed: float) -> None:
        """Set the playing speed as a multiple of real time."""
        self.advance()
        self.speed = min(max(speed, SPEEDS[0]), SPEEDS[-1])

    def change_speed(self, direction: int) -> None:
        """Select the next of `SPEEDS` that is faster (1) or slower (-1)."""
        further = [s for s in SPEEDS if (s - self.speed) * direction > 0]
        self.set_speed(min(further, key=lambda s: abs(s - self.speed), default=self.speed))

    def step_event(self, direction: int) -> bool:
        """Move to the next (1) or previous (-1) event or command. Returns whether there is one.

        While playing, the event just passed does not count. Else the position would never get behind it.
        """
        here = self.position
        if direction > 0:
            found = next((t for t in self._stops if t > here), None)
        else:
            passed = APART_S * self.speed * SECOND if self.playing else 0
            found = next((t for t in reversed(self._stops) if t < here - passed), None)
        if found is not None:
            self.seek(found)
        return found is not None

    def find(self, asked: str) -> int:
        """Parse a position: `+1h20m` from the start, `-10m` before the end, `14:05:30`, `50%`, `#1200`.

        `1:20:31` is a time of day. If the recording does not contain it, it is a time after the start, as in
        the time bar.

        Raises:
            ValueError: the text is invalid, or not in this recording; one sentence.
        """
        asked = asked.strip()
        start, end = self.store.span
        if found := re.fullmatch(r"#\s*([\d _]+)", asked):
            return self._iteration(int(re.sub(r"[ _]", "", found[1]) or 0))
        if found := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", asked):
            if float(found[1]) > 100:
                raise ValueError(f"{asked} is more than all of it")
            return start + round((end - start) * float(found[1]) / 100)
        if found := re.fullmatch(r"([+-])\s*(.+)", asked):
            ns = _duration_ns(found[2])
            if ns is not None:
                if ns > end - start:
                    raise ValueError(f"this recording is {numbers.duration((end - start) / SECOND)} long")
                return start + ns if found[1] == "+" else end - ns
        if found := re.fullmatch(r"(?:(\d{4}-\d\d-\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d))?", asked):
            try:
                return self._time_of_day(found[1], int(found[2]), int(found[3]), int(found[4] or 0))
            except ValueError:
                since = None if found[1] else _duration_ns(asked)
                if since is None or since > end - start:
                    raise
                return start + since
        raise ValueError(f"{numbers.clean(asked, 40)!r} is no time: +1h20m, -10m, 14:05:30, 50% or #1200")

    # internals ----------------------------------------------------------------------------------------------

    def _move(self, t: float) -> None:
        self.store.seek(int(t))
        self._exact = min(max(t, float(self.store.span[0])), float(self.store.span[1]))

    def _iteration(self, step: int) -> int:
        if not self.store.run_id:
            raise ValueError("this recording has no run, so it has no iterations")
        source = f"run/{self.store.run_id}"
        found = self.store.pages.first_at(source, step) if source in self.store.pages.sources else None
        if found is None:
            raise ValueError(f"the run did not come to iteration {numbers.grouped(step)}")
        return found

    def _time_of_day(self, date: str | None, hour: int, minute: int, second: int) -> int:
        """Return the stamp of a local time: on the given day, else on the day nearest to the position."""
        start, end = self.store.span
        first = time.localtime(self.reel.wall(start))
        days = range((end - start) // (86400 * SECOND) + 2)
        dates = [(first.tm_year, first.tm_mon, first.tm_mday + day) for day in days]
        if date is not None:
            year, month, day = map(int, date.split("-"))
            dates = [(year, month, day)]
        if hour > 23 or minute > 59 or second > 59:
            raise ValueError(f"{hour}:{minute:02} is no time of day")
        walls = (time.mktime((*one, hour, minute, second, 0, 0, -1)) for one in dates)
        stamps = [round(wall * SECOND) - self._wall_offset_ns for wall in walls]
        # The ends are shown in whole seconds, and a user may type what is shown.
        inside = [t for t in stamps if start - SECOND < t <= end]
        if not inside:
            shown = numbers.clock if end - start < 86400 * SECOND and date is None else numbers.day_clock
            between = f"{shown(self.reel.wall(start))} to {shown(self.reel.wall(end))}"
            raise ValueError(
                f"{hour:02}:{minute:02}:{second:02} is not in this recording, which is of {between}"
            )
        return max(start, min(inside, key=lambda t: abs(t - self.position)))


def _stops(moments: tuple[int, ...]) -> list[int]:
    """Return one stamp for all moments within `APART_S` of the first: the last of them, so that all are
    visible."""
    stops: list[int] = []
    first = 0
    for t in moments:
        if stops and t - first <= APART_S * SECOND:
            stops[-1] = t
        else:
            stops.append(t)
            first = t
    return stops


def _duration_ns(asked: str) -> int | None:
    """Parse `1h20m`, `90s`, `1 h 20 m`, `1:20:00` or `90` (seconds). Returns ns, None if invalid."""
    compact = asked.replace(" ", "")
    if found := re.fullmatch(r"(?:(\d+):)?(\d{1,2}):(\d\d)", compact):
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return (hours * 3600 + minutes * 60 + seconds) * SECOND
    pattern = r"(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s?)?"
    found = re.fullmatch(pattern, compact)
    if not compact or not found:
        return None
    try:
        days, hours_, minutes_, seconds_ = (float(part or 0) for part in found.groups())
    except ValueError:
        return None
    return round((((days * 24 + hours_) * 60 + minutes_) * 60 + seconds_) * SECOND)
