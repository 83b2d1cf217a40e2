"""Everything that touches the disk, in one thread: recordings are written here and past values read.

The daemon's loop only puts jobs into a bounded queue and takes results from another; a slow, full or hanging disk costs
history, never the live view or a run.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hoptui.recording import Recording, RecordingError
from hoptui.recording.boots import this_boot
from hoptui.recording.known import KnownRun
from hoptui.recording.resample import buckets
from hoptui.wire.addresses import AddressError, Addresses, secure
from hoptui.wire.columns import Columns
from hoptui.wire.messages import Buckets, CommandRecord, Error, Event, Query, RunState

log = logging.getLogger("hoptui.daemon")

FLUSH_S = 1.0
JOBS = 20_000
LARGEST_BYTES = 1 << 30
RESTORED = 50
RESTORE_YOUNGER_S = 24 * 3600


@dataclass
class Found:
    """What a recording tells a new daemon of its run."""

    state: RunState
    nonce: str
    process_started: int
    last_step: int
    events: list[Event]
    commands: list[CommandRecord]
    newest: Columns | None


@dataclass
class _Open:
    recording: Recording
    recorded: set[str] = field(default_factory=set)
    problem: str = ""


class Archive:
    """Used by the loop; the work happens in its thread. `results` is called in that thread, with finished queries."""

    def __init__(self, where: Addresses, results: Callable[[bytes, Buckets | Error], None]) -> None:
        self._where = where
        self._results = results
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(JOBS)
        self._thread = threading.Thread(target=self._main, name="archive", daemon=True)
        self._open: dict[str, _Open] = {}
        self._found: list[Found] = []
        self._restored = threading.Event()
        self._flushed: dict[str, int] = {}
        self._refused = 0
        self._problem = ""

    def start(self) -> None:
        self._thread.start()

    def restore(self, timeout: float) -> list[Found]:
        """What the recordings of the last day know, or as much as was read in time."""
        self._restored.wait(timeout)
        return list(self._found)

    def close(self, timeout: float) -> None:
        """Write what is left; give up after `timeout` seconds."""
        try:
            self._jobs.put(None, timeout=0.1)
        except queue.Full:
            return
        self._thread.join(timeout)

    # jobs, from the loop -----------------------------------------------------------------------------------------------

    def rows(self, runs: Iterable[str], columns: Columns) -> None:
        """Rows to keep in the recordings of these runs."""
        wanted = tuple(runs)
        if wanted:
            self._put(lambda: self._append(wanted, columns))

    def run(self, known: KnownRun) -> None:
        """What is known of a run; opens its recording if this is the first that is heard of it."""
        self._put(lambda: self._remember(known))

    def event(self, event: Event, runs: Iterable[str]) -> None:
        wanted = (event.run,) if event.run else tuple(runs)
        self._put(lambda: self._each(wanted, lambda r: r.event(event)))

    def command(self, record: CommandRecord) -> None:
        self._put(lambda: self._each((record.run,), lambda r: r.command(record)))

    def query(self, identity: bytes, query: Query, live: list[Columns]) -> None:
        """Past values: from the recording, and from `live` what is newer."""
        self._put(lambda: self._results(identity, self._answer(query, live)))

    def finish(self, run: str) -> None:
        """The run has exited: close its recording."""
        self._put(lambda: self._close_one(run))

    def flushed(self, source: str) -> int:
        """The stamp of the newest row of a source that is safely on disk, 0 if there is none."""
        return self._flushed.get(source, 0)

    @property
    def problem(self) -> str:
        """Why history is not being kept, "" if it is."""
        if self._refused:
            return f"the disk does not keep up: {self._refused} jobs were refused"
        return self._problem

    def problem_of(self, run: str) -> str:
        """Why this run's history is not being kept, "" if it is."""
        found = self._open.get(run)
        return found.problem if found else ""

    def _put(self, job: Callable[[], None]) -> None:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._refused += 1

    # in the thread -----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            secure(self._where.state)
        except AddressError as error:
            self._problem = str(error)
        try:
            self._restore()
        except OSError as error:
            self._problem = f"{self._where.state} cannot be read: {error.strerror}"
        self._restored.set()
        next_flush = time.monotonic() + FLUSH_S
        while True:
            try:
                job = self._jobs.get(timeout=max(0.0, next_flush - time.monotonic()))
                if job is None:
                    break
                job()
            except queue.Empty:
                pass
            except Exception:
                log.exception("a job of the archive failed")
            if time.monotonic() >= next_flush:
                self._flush()
                next_flush = time.monotonic() + FLUSH_S
        for run in list(self._open):
            self._close_one(run)

    def _restore(self) -> None:
        now = time.time()
        paths = [(p.stat().st_mtime, p) for p in self._where.state.glob("*.hoptui")]
        recent = sorted((m, p) for m, p in paths if now - m < RESTORE_YOUNGER_S)
        for _, path in recent[-RESTORED:]:
            try:
                with Recording.open(path, boot=this_boot()) as recording:
                    self._found.append(_found(recording))
            except (RecordingError, msgspec.DecodeError, ValueError) as error:
                log.warning("%s is left aside: %s", path, error)

    def _remember(self, known: KnownRun) -> None:
        run = known.state.run
        opened = self._open.get(run)
        if opened is None:
            try:
                recording = Recording.create(self._where.recording(run))
            except RecordingError as error:
                self._problem = error.reason
                return
            opened = self._open[run] = _Open(recording)
            self._problem = ""
        opened.recording.remember("run", msgspec.json.encode(known))

    def _each(self, runs: Iterable[str], use: Callable[[Recording], None]) -> None:
        for run in runs:
            opened = self._open.get(run)
            if opened is not None and opened.problem != _FULL:
                use(opened.recording)

    def _append(self, runs: Iterable[str], columns: Columns) -> None:
        for run in runs:
            if run in self._open:
                self._open[run].recorded.add(columns.source)
        self._each(runs, lambda r: r.append(columns))

    def _flush(self) -> None:
        for opened in self._open.values():
            recording = opened.recording
            try:
                if recording.size_bytes > LARGEST_BYTES:
                    opened.problem = _FULL
                    continue
                recording.flush()
            except RecordingError as error:
                if opened.problem != error.reason:
                    log.warning("history is not being kept: %s", error.reason)
                opened.problem = self._problem = error.reason
                continue
            if opened.problem:
                log.warning("history is being kept again in %s", recording.path)
                opened.problem = self._problem = ""
            for source in opened.recorded:
                self._flushed[source] = max(recording.last_t(source), self._flushed.get(source, 0))

    def _close_one(self, run: str) -> None:
        opened = self._open.pop(run, None)
        if opened is None:
            return
        try:
            opened.recording.close()
        except RecordingError as error:
            log.warning("the end of a recording is lost: %s", error.reason)

    def _answer(self, query: Query, live: list[Columns]) -> Buckets | Error:
        stored: list[Columns] = []
        try:
            recording, owned = self._recording_of(query)
            if recording is not None:
                try:
                    stored = list(recording.rows(query.source, query.t0, query.t1, query.names))
                finally:
                    if owned:
                        recording.close()
        except RecordingError as error:
            if not live:
                return Error(code="no_history", text=error.reason, id=query.id)
        last = max((part.times()[-1] for part in stored), default=0)
        newer = [part.after(last) for part in live]
        parts = [p for p in (*stored, *newer) if len(p)]
        names = query.names or tuple(dict.fromkeys(n for p in parts for n in p.names))
        t0 = query.t0 or (parts[0].times()[0] if parts else 0)
        t1 = query.t1 or (parts[-1].times()[-1] if parts else 0)
        return buckets(parts, query.source, names, t0, t1, max(1, min(query.points, 4096)), id=query.id)

    def _recording_of(self, query: Query) -> tuple[Recording | None, bool]:
        """The recording that has the source, and whether it was opened for this query only."""
        run = query.run or (
            query.source.partition("/")[2] if query.source.startswith(("run/", "process/")) else ""
        )
        if run in self._open:
            return self._open[run].recording, False
        if run:
            path = self._where.recording(run)
            return (
                (Recording.open(path, boot=this_boot()), True)
                if _plain(run) and path.exists()
                else (None, False)
            )
        for opened in self._open.values():
            if query.source in opened.recording.sources():
                return opened.recording, False
        return None, False


_FULL = f"the recording has reached its limit of {LARGEST_BYTES >> 30} GiB"


def _plain(run: str) -> bool:
    """A run id that cannot lead out of the state directory."""
    return Path(run).name == run and run not in ("", ".", "..")


def _found(recording: Recording) -> Found:
    raw = recording.recall("run")
    if raw is None:
        raise ValueError("it does not say which run it is of")
    known = msgspec.json.decode(raw, type=KnownRun)
    source = f"run/{known.state.run}"
    last = recording.last_t(source)
    newest = None
    for part in recording.rows(source, max(1, last - 600_000_000_000)) if last else ():
        newest = part
    return Found(
        state=known.state,
        nonce=known.nonce,
        process_started=known.process_started,
        last_step=newest.steps()[-1] if newest is not None and len(newest) else 0,
        events=recording.events(),
        commands=recording.commands(),
        newest=newest,
    )
