"""The open recordings: writing, queries and limits. Limits apply to all recordings together and to each one.

Only the archive's thread uses them.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoptui.daemon.recording_writer import RecordingWriter
from hoptui.daemon.retention_clock import RetentionClock
from hoptui.daemon.state.stack_windows import StackBatch
from hoptui.domain.columns import Columns, run_of
from hoptui.domain.details import RunDetails
from hoptui.domain.devices import GpuProcess
from hoptui.domain.jobs import JobState
from hoptui.node.addresses import AddressError, Addresses, secure
from hoptui.node.processes import process_started
from hoptui.protocol.messages import Buckets, CommandRecord, Event, NodeState, Query, RunState
from hoptui.protocol.recorded_jobs import encode_recorded
from hoptui.protocol.recorded_processes import encode_processes
from hoptui.recording import Recording, RecordingError, library, stack_minutes
from hoptui.recording.ingest import this_boot
from hoptui.recording.library import KnownEnding, KnownRun
from hoptui.recording.pyramid import buckets
from hoptui.recording.timed_states import JOB, PROCESSES

GB = 10**9
DAY_S = 86400.0
KEEP_GB, KEEP_DAYS, RUN_GB = 10.0, 30.0, 1.0
DEFAULTS = {"HOPTUI_KEEP_GB": KEEP_GB, "HOPTUI_KEEP_DAYS": KEEP_DAYS, "HOPTUI_RUN_GB": RUN_GB}


@dataclass(frozen=True)
class RetentionLimits:
    """`keep_bytes` and `keep_s` for all recordings, `run_bytes` for each."""

    keep_bytes: int = int(KEEP_GB * GB)
    keep_s: float = KEEP_DAYS * DAY_S
    run_bytes: int = int(RUN_GB * GB)


def limits(environ: Mapping[str, str]) -> RetentionLimits:
    """Return the limits from HOPTUI_KEEP_GB, HOPTUI_KEEP_DAYS and HOPTUI_RUN_GB. Invalid values are
    ignored."""
    return RetentionLimits(
        keep_bytes=int(_number(environ, "HOPTUI_KEEP_GB") * GB),
        keep_s=_number(environ, "HOPTUI_KEEP_DAYS") * DAY_S,
        run_bytes=int(_number(environ, "HOPTUI_RUN_GB") * GB),
    )


def refused(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each of these variables with an invalid value."""
    return [
        f"{name}={environ[name]!r} is no positive number: {default:g} is used"
        for name, default in DEFAULTS.items()
        if environ.get(name, "").strip() and not _positive(environ[name])
    ]


def _number(environ: Mapping[str, str], name: str) -> float:
    raw = environ.get(name, "")
    return float(raw) if _positive(raw) else DEFAULTS[name]


def _positive(raw: str) -> bool:
    try:
        return 0 < float(raw) < math.inf
    except ValueError:
        return False


log = logging.getLogger("hoptui.daemon")

RESTORED = 50
RESTORE_YOUNGER_S = 24 * 3600
MOST_POINTS = 4096
NEWEST_ROWS_S = 10.0
"""The newest rows of a run are those of this time before its last row."""
NEWEST_S = 600.0
"""The newest row of a run is searched in this time before its end."""


@dataclass
class RecordedRun:
    """The contents of a recording for a new daemon.

    `energy_j` is the energy used when its GPUs' counters had the values `counters`.
    """

    state: RunState
    nonce: str
    process_started: int
    events: list[Event]
    commands: list[CommandRecord]
    newest: Columns | None
    energy_j: float
    counters: dict[str, float]
    details: RunDetails | None = None
    leaving: KnownEnding | None = None


LONGEST_ID = 64
MOST_ENDED = 16
"""Runs that have exited and whose recordings still wait for the disk."""


class History:
    """The open recordings. `flushed` holds the stamp of the newest row of each source on disk, `stored` that
    of the newest row of each run when this daemon opened its recording.

    `problem` is the reason why history is not being kept, `problem_of` the reason for one run. `written` is
    called with a run and the numbers of commands that are on disk, by id, if that is to be reported.
    """

    def __init__(
        self,
        where: Addresses,
        limits: RetentionLimits,
        written: Callable[[str, dict[str, int]], None] = lambda *_: None,
    ) -> None:
        self._where = where
        self._written = written
        self._limits = limits
        self._open: dict[str, RecordingWriter] = {}
        self._unrecorded: dict[str, tuple[int, str]] = {}  # by run: what its file does not count, in words
        self._missing: dict[str, str] = {}  # by run: what its file counts, in words, as it was restored
        self._clock = RetentionClock(where.state)
        self._aside: dict[Path, str] = {}
        self._turn = 0  # number of the recording that summarises rows next
        self.flushed: dict[str, int] = {}
        self.stored: dict[str, int] = {}

    @property
    def open(self) -> tuple[str, ...]:
        """The runs whose recordings are written."""
        return tuple(self._open)

    @property
    def problem(self) -> str:
        ended = (sentence for _, sentence in self._unrecorded.values())
        return next(filter(None, (*(writer.problem for writer in self._open.values()), *ended)), "")

    def problem_of(self, run: str) -> str:
        writer = self._open.get(run)
        if writer is not None:
            return writer.problem
        return self._unrecorded.get(run, (0, ""))[1] or self._missing.get(run, "")

    def restore(self) -> Iterator[RecordedRun]:
        """Yield the contents of the recordings of the last day, and of runs whose process lives.

        First come those that nobody has closed, as their run may live; then the newest. The clock may be
        wrong: a live run is never too old, and ages count from the trusted time (see `retention_clock`).

        Raises:
            AddressError: the state directory is not private to this user, or cannot be created.
            OSError: it cannot be read.
        """
        secure(self._where.state)
        now = self._clock.now(time.time(), self._closed())
        written: list[tuple[bool, float, Path]] = []
        for path in self._where.state.glob(f"*{library.SUFFIX}"):
            try:
                written.append((not library.at_rest(path), path.stat().st_mtime, path))
            except OSError as error:  # a link to nowhere, say
                self._leave_aside(path, f"{path} cannot be read: {error.strerror}")
        for _, modified, path in sorted(written, reverse=True)[:RESTORED]:
            recent = now - modified < RESTORE_YOUNGER_S
            try:
                with Recording.open(path, boot=this_boot(), still=library.at_rest(path)) as recording:
                    known = _found(recording) if recent or _of_a_live_process(recording) else None
                    if known is not None and (lacks := library.missing(recording)):
                        self._missing[known.state.run] = lacks
            except RecordingError as error:
                self._leave_aside(path, error.reason, recent=recent)
                continue
            except Exception as error:  # one file must not cost the others
                log.exception("%s cannot be read", path)
                self._leave_aside(path, f"{path} cannot be read: {type(error).__name__}", recent=recent)
                continue
            if known is not None:
                yield known

    def _leave_aside(self, path: Path, why: str, *, recent: bool = True) -> None:
        if recent:
            log.warning("left aside: %s", why)
            self._aside[path] = why

    @property
    def left_aside(self) -> str:
        """The recordings that `restore` could not read, in one phrase; "" for none."""
        reasons = list(self._aside.values())
        if not reasons:
            return ""
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        return f"a recording was left aside when the daemon started: {reasons[0]}{more}"

    # writing

    def remember(self, known: KnownRun, node: NodeState) -> None:
        """Store the state of a run and its node. Opens its recording, or retries with each flush."""
        run = known.state.run
        writer = self._open.get(run)
        new = writer is None
        if writer is None:
            writer = self._open[run] = RecordingWriter(run, self._where.recording(run))
            writer.lose(self._unrecorded.pop(run, (0, ""))[0])
        writer.ended = False
        writer.known, writer.node = known, node
        if new:  # write at once, so that the recording names its run even if the daemon is killed
            self._flush(writer)

    def node(self, runs: Iterable[str], state: NodeState) -> None:
        """Store the node's state."""
        for writer in self._of(runs):
            writer.node = state

    def append(self, runs: Iterable[str], parts: Sequence[Columns]) -> None:
        for writer in self._of(runs):
            writer.append(parts)

    def event(self, runs: Iterable[str], event: Event) -> None:
        for writer in self._of(runs):
            writer.event(event)

    def command(self, record: CommandRecord, *, report: bool = False) -> None:
        for writer in self._of((record.run,)):
            writer.command(record, report=report)

    def stacks(self, run: str, batch: StackBatch) -> None:
        """Store the stack samples of a run."""
        for writer in self._of((run,)):
            body = stack_minutes.encode(batch.parts, batch.t, batch.most_bytes)
            writer.stacks(batch.t, body, batch.samples)

    def job(self, run: str, t: int, state: JobState) -> None:
        """Store the state of a run on all its nodes."""
        for writer in self._of((run,)):
            writer.state(JOB, t, encode_recorded(state))

    def processes(self, runs: Iterable[str], t: int, processes: Sequence[GpuProcess]) -> None:
        """Store the processes on the GPUs of the node."""
        body = encode_processes(processes)
        for writer in self._of(runs):
            writer.state(PROCESSES, t, body)

    def lose(self, counts: Mapping[str, int]) -> None:
        """Count what was lost on its way here, by run."""
        for run in self._open.keys() & counts.keys():
            self._open[run].lose(counts[run])

    def flush(self, *runs: str) -> bool:
        """Write waiting data of these runs (none: of all) to disk, and keep recordings within their limit.

        Returns whether the recordings of all of them are open and have everything.
        """
        writers = self._of(runs or self.open)
        complete = len(writers) >= len(runs)
        for writer in writers:
            written = self._flush(writer)
            complete = complete and written
            if written and writer.ended:
                self.close(writer.run)
        return complete

    def summarise(self) -> bool:
        """Summarise older rows in one recording where that is due. Return False if there is none.

        It takes a tenth of a second. The recordings take turns, as those of runs that began together become
        due together.
        """
        found = list(self._open.values())
        for number in range(len(found)):
            turn = (self._turn + number) % len(found)
            if found[turn].summarise():
                self._turn = turn + 1
                return True
        return False

    def _flush(self, writer: RecordingWriter) -> bool:
        written = writer.flush(self._limits.run_bytes)
        if numbers := writer.take_reported():
            self._written(writer.run, numbers)
        if writer.found_t is not None:
            self.stored.setdefault(writer.run, writer.found_t)
        if written and writer.recording is not None:
            for source in writer.sources:
                self.flushed[source] = max(writer.recording.last_t(source), self.flushed.get(source, 0))
        return written

    def finish(self, run: str) -> None:
        """The run has exited: close its recording as soon as all is written."""
        for writer in self._of((run,)):
            writer.ended = True
            if self._flush(writer):
                self.close(run)
        ended = [run for run, writer in self._open.items() if writer.ended]
        for run in ended[: max(0, len(ended) - MOST_ENDED)]:
            self.close(run)

    def close(self, run: str) -> None:
        """Close a recording now, after the end of its run or of the daemon. What cannot be written is
        lost."""
        writer = self._open.pop(run, None)
        if writer is None:
            return
        self._flush(writer)
        if lost := writer.close():
            self._unrecorded[run] = lost, writer.problem
            self._unrecorded = dict(list(self._unrecorded.items())[-RESTORED:])

    def tidy(self, now: float) -> None:
        """Remove the oldest recordings beyond the limits, never one that may be written.

        `now` is the wall clock in seconds. Ages count from the trusted time (see `retention_clock`).
        """
        try:
            secure(self._where.state)
        except AddressError:
            return
        self._aside = {path: why for path, why in self._aside.items() if os.path.lexists(path)}
        limits = self._limits
        gone = library.tidy(
            self._where.state,
            keep=frozenset(self._open),
            most_bytes=limits.keep_bytes,
            oldest_s=limits.keep_s,
            now=self._clock.now(now, self._closed()),
        )
        for removed in gone:
            log.info("removed %s (%d bytes): %s", removed.path, removed.size_bytes, removed.why)

    def _closed(self) -> list[float]:
        """When the recordings that no run has open were last written."""
        found = []
        for path in self._where.state.glob(f"*{library.SUFFIX}"):
            with contextlib.suppress(OSError):
                if path.stem not in self._open:
                    found.append(path.stat().st_mtime)
        return found

    def _of(self, runs: Iterable[str]) -> list[RecordingWriter]:
        return [self._open[run] for run in runs if run in self._open]

    # reading

    def answer(self, query: Query, live: Sequence[Columns]) -> Buckets:
        """Return past values of a source, from memory if it reaches back far enough, else from a recording.

        Raises:
            RecordingError: it cannot be read.
        """
        since = live[0].times()[0] if live else 0
        if live and query.t0 >= since:
            return rows_as_buckets(query, live)
        recording, owned = self._recording_of(query)
        if recording is None:
            return rows_as_buckets(query, live)
        try:
            first = recording.sources().get(query.source, (0, 0, 0))
            if not first[2] or (live and first[0] > since):
                return rows_as_buckets(query, live)
            return recording.buckets(
                query.source, query.names, query.t0, query.t1, _points(query), id=query.id
            )
        finally:
            if owned:
                recording.close()

    def _recording_of(self, query: Query) -> tuple[Recording | None, bool]:
        """Return the recording that has the source, and whether it was opened only for this query."""
        run = query.run or run_of(query.source)
        if run in self._open and self._open[run].recording is not None:
            return self._open[run].recording, False
        if run:
            path = self._where.recording(run)
            if not _plain(run) or not path.exists():
                return None, False
            return Recording.open(path, boot=this_boot()), True
        having = (w.recording for w in self._open.values() if query.source in w.sources)
        return next(having, None), False


def rows_as_buckets(query: Query, parts: Sequence[Columns]) -> Buckets:
    """Answer a query from rows in memory."""
    return buckets(parts, query.source, query.names, query.t0, query.t1, _points(query), id=query.id)


def _points(query: Query) -> int:
    return max(1, min(query.points, MOST_POINTS))


def _plain(run: str) -> bool:
    """Return whether a run id can be a part of a file name, and cannot lead out of the state directory."""
    return len(run) <= LONGEST_ID and Path(run).name == run and run not in ("", ".", "..")


def _of_a_live_process(recording: Recording) -> bool:
    known = library.known_run(recording)
    if known is None or known.state.exit_reason or not known.process_started:
        return False
    return process_started(known.state.pid) == known.process_started


def _found(recording: Recording) -> RecordedRun | None:
    """Return what a recording knows of its run, None if it is of a node without one."""
    known = library.known_run(recording)
    if known is None:
        return None
    run = known.state.run
    newest = None
    last = recording.last_t(f"run/{run}")
    for part in recording.rows(f"run/{run}", max(1, last - int(NEWEST_ROWS_S * 1e9))) if last else ():
        newest = part
    used = _last(recording, f"derived/{run}", "energy_j")
    counters = {uuid: _last(recording, f"gpu/{uuid}", "energy_j") for uuid in known.state.gpus}
    return RecordedRun(
        state=known.state,
        nonce=known.nonce,
        process_started=known.process_started,
        events=recording.events(),
        commands=recording.commands(),
        newest=newest,
        energy_j=used or 0.0,
        counters={uuid: value for uuid, value in counters.items() if value is not None},
        details=known.details,
        leaving=known.leaving,
    )


def _last(recording: Recording, source: str, name: str) -> float | None:
    """Return the newest value of a series, None if there is none of this boot."""
    last = recording.last_t(source)
    return recording.at(source, last, NEWEST_S).get(name) if last else None
