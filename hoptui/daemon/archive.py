"""All disk access, in one thread: it writes recordings and reads past values.

The daemon's loop only adds jobs to a bounded queue and takes results from another. A slow, full or hanging
disk costs history, never the live view or a run. Rows wait for the next flush without waking the thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from hoptui.daemon.recordings import History, RecordedRun, RetentionLimits, rows_as_buckets
from hoptui.daemon.state.stack_windows import StackBatch
from hoptui.domain import enumerations
from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuProcess
from hoptui.domain.jobs import JobState
from hoptui.domain.pacing import DEFAULT, Timings
from hoptui.node.addresses import AddressError, Addresses, secure
from hoptui.node.files import replaced
from hoptui.protocol.codec import MAX_ANSWER_BYTES, encode
from hoptui.protocol.messages import Buckets, CommandRecord, Error, Event, NodeState, Query
from hoptui.recording import RecordingError
from hoptui.recording.library import KnownRun
from hoptui.tuner.prior_results import MOST, TunerResult, with_newer

log = logging.getLogger("hoptui.daemon")

NAME = "tuner.jsonl"
MOST_BYTES = 4 << 20
"""A longer file is not read beyond this."""


class ResultsFile:
    """The file of tuner results. `results` are those that the file holds.

    If it cannot be read or written, only the results of past runs are lost.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / NAME
        self._lines = 0
        self.results: tuple[TunerResult, ...] = ()

    def read(self) -> None:
        """Read the file. Invalid lines, as a killed daemon may leave them, are skipped."""
        try:
            secure(self._path.parent)
            with self._path.open("rb") as file:
                lines = file.read(MOST_BYTES).splitlines()
        except FileNotFoundError:
            return
        except AddressError as error:
            log.warning("the results of tuners are not read: %s", error)
            return
        except OSError as error:
            log.warning("%s cannot be read: %s", self._path, error.strerror)
            return
        self._lines = len(lines)
        for line in lines:
            try:
                self.results = with_newer(
                    self.results, enumerations.convert(msgspec.json.decode(line), TunerResult)
                )
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                log.warning("%s has a line that is not a result", self._path)

    def add(self, newer: TunerResult) -> None:
        """Store a result. The file is rewritten once newer results have replaced most of its lines."""
        self.results = with_newer(self.results, newer)
        try:
            secure(self._path.parent)
            if self._lines >= 2 * MOST:
                self._write_anew()
            else:
                with os.fdopen(
                    os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab"
                ) as file:
                    file.write(msgspec.json.encode(newer) + b"\n")
                self._lines += 1
        except AddressError as error:
            log.warning("the results of tuners are not kept: %s", error)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)

    def _write_anew(self) -> None:
        with replaced(self._path, 0o600) as file:
            file.writelines(msgspec.json.encode(result) + b"\n" for result in self.results)
        self._lines = len(self.results)


TIDY_S = 600.0
JOBS = 20_000
"""Of rows, events and commands. There may be as many more that open, close and read recordings."""
JOBS_BYTES = 256 << 20
"""Of the rows that wait. Those of the widest runs fill it before `JOBS`."""
SUMMARY_SHARE = 0.2
"""Of the thread's time for summaries of older rows. Rows and commands that wait come first."""
MANY = 1000
"""This many jobs wake the thread early."""
REFUSED_SHOWN_S = 60.0
"""How long refused jobs are reported, counted from the last one."""


class Archive:
    """Used by the loop; the work happens in its thread, which calls `results` with finished queries, and
    `written` with a run and the numbers of its urgent commands that are on disk, by id."""

    def __init__(
        self,
        where: Addresses,
        limits: RetentionLimits,
        results: Callable[[bytes, Buckets | Error], None],
        written: Callable[[str, dict[str, int]], None] = lambda *_: None,
        *,
        timings: Timings = DEFAULT,
    ) -> None:
        self._timings = timings
        self._where = where
        self._results = results
        self._confirmed = written
        self._jobs: deque[Callable[[], None]] = deque()
        self._bytes_put = self._bytes_done = 0  # of rows; one is counted by the loop, one by the thread
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="archive", daemon=True)
        self._history = History(where, limits, written)
        self._settled = ResultsFile(where.state)
        self._found: list[RecordedRun] = []
        self._done = 0
        self._urgent: dict[str, None] = {}  # in the thread: runs in order
        self._unflushed: deque[str] = deque()  # in the thread: the recordings left in this round
        self._restored = threading.Event()
        self._refused, self._refused_at = 0, -REFUSED_SHOWN_S
        self._missing: Counter[str] = Counter()  # what was refused, by run; not yet known to the thread
        self._failed, self._failed_at, self._failed_as = 0, -REFUSED_SHOWN_S, ""
        self._unrestored = self._ended = ""

    def start(self) -> None:
        self._thread.start()

    def restore(self, timeout: float) -> list[RecordedRun]:
        """Return the contents of the last day's recordings, oldest first. After `timeout` seconds, those that
        have been read."""
        self._restored.wait(timeout)
        return list(self._found)[::-1]

    def close(self, timeout: float) -> None:
        """Write what is left. Give up if no job ends for `timeout` seconds, and after ten times that."""
        self._closing = True
        self._wake.set()
        until = time.monotonic() + 10 * timeout
        done = -1
        while self._thread.is_alive() and done != self._done and time.monotonic() < until:
            done = self._done
            self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the disk is too slow: %d jobs of the archive were not done", len(self._jobs))

    # jobs, from the loop ------------------------------------------------------------------------------------

    def rows(self, runs: Iterable[str], parts: Sequence[Columns]) -> None:
        """Store rows in the recordings of these runs."""
        wanted = tuple(runs)
        if not wanted:
            return
        size = sum(part.size_bytes for part in parts)
        full = self._bytes_put - self._bytes_done + size > JOBS_BYTES
        if self._add(lambda: self._append(wanted, parts, size), wanted, sum(map(len, parts)), full=full):
            self._bytes_put += size

    def run(self, known: KnownRun, node: NodeState) -> None:
        """Store the state of a run. Opens its recording if it is the first."""
        self._put(lambda: self._history.remember(known, node), now=True, most=2 * JOBS)

    def node(self, state: NodeState, runs: Iterable[str]) -> None:
        """Store a new state of the node in the recordings of these runs."""
        wanted = tuple(runs)
        if wanted:
            self._put(lambda: self._history.node(wanted, state))

    def event(self, event: Event, runs: Iterable[str]) -> None:
        wanted = (event.run,) if event.run else tuple(runs)
        self._add(lambda: self._history.event(wanted, event), wanted, 1)

    def command(self, record: CommandRecord, *, urgent: bool = False) -> None:
        """Store a command. An urgent one is written at once, and `written` is called when it is on disk."""
        self._add(lambda: self._command(record, urgent=urgent), (record.run,), 1)
        if urgent:
            self._wake.set()

    def stacks(self, run: str, batch: StackBatch) -> None:
        """Store the stack samples of a run."""
        self._add(lambda: self._history.stacks(run, batch), (run,), batch.samples)

    def job(self, run: str, t: int, state: JobState) -> None:
        """Store the state of a run on all its nodes."""
        self._put(lambda: self._history.job(run, t, state))

    def processes(self, runs: Iterable[str], t: int, processes: Sequence[GpuProcess]) -> None:
        """Store the processes on the GPUs of the node in the recordings of these runs."""
        wanted = tuple(runs)
        self._put(lambda: self._history.processes(wanted, t, processes))

    def keep(self, run: str) -> Callable[[], bool]:
        """Write the data of a run to disk now instead of with the next flush.

        Returns a function that returns whether all that was known until now is on disk. If the disk refuses
        it, it stays False.
        """
        written = threading.Event()

        def write() -> None:
            if self._history.flush(run):
                written.set()

        self._put(write, now=True)
        return written.is_set

    def confirm(self, run: str) -> None:
        """Write the data of a run to disk now, and call `written` when it is there or the disk refuses it."""

        def job() -> None:
            try:
                self._history.flush(run)
            finally:
                self._confirmed(run, {})

        self._put(job, now=True)

    def settle(self, result: TunerResult) -> None:
        """Store the best settings that a tuner found, for later runs of the same kind."""
        self._put(lambda: self._settled.add(result))

    @property
    def settled(self) -> tuple[TunerResult, ...]:
        """The stored results of tuners, as far as they have been read and written."""
        return self._settled.results

    def query(self, identity: bytes, query: Query, live: Sequence[Columns]) -> None:
        """Answer a query: from `live`, the rows of the source in memory, if they reach back far enough."""
        self._put(lambda: self._results(identity, self._answer(query, live)), now=True)

    def finish(self, run: str) -> None:
        """The run has exited: close its recording once all is written."""
        self._put(lambda: self._history.finish(run), now=True, most=2 * JOBS)

    def flushed(self, source: str) -> int:
        """Return the stamp of the newest row of a source on disk, 0 if there is none."""
        return self._history.flushed.get(source, 0)

    def stored(self, run: str) -> int | None:
        """Return the stamp of the newest row of a run that earlier daemons have stored, 0 for none.

        None while the recording is not open.
        """
        return self._history.stored.get(run)

    @property
    def problem(self) -> str:
        """What is wrong with history, "" for nothing: why it is not being kept, or what is missing in it."""
        if self._ended:
            return self._ended
        if time.monotonic() - self._refused_at < REFUSED_SHOWN_S:
            return (
                f"the disk did not keep up: {self._refused} jobs were refused, the last less than a minute "
                "ago"
            )
        if self._history.problem:
            return self._history.problem
        if time.monotonic() - self._failed_at < REFUSED_SHOWN_S:
            return f"{self._failed} writes or queries have failed, the last with {self._failed_as}"
        return self._unrestored or self._history.left_aside

    def problem_of(self, run: str) -> str:
        """Return the reason why this run's history is not being kept, "" if it is."""
        return self._history.problem_of(run)

    def _add(self, job: Callable[[], None], runs: Iterable[str], count: int, *, full: bool = False) -> bool:
        """Put a job that stores `count` rows, events, commands or stack samples of each of these runs.

        Count them if it is refused, as it is if `full`. Return whether it was put.
        """
        if self._missing and len(self._jobs) < JOBS and not full:
            missing, self._missing = self._missing, Counter()
            self._put(lambda: self._history.lose(missing))
        if self._put(job, full=full):
            return True
        self._missing.update(dict.fromkeys(runs, count))
        return False

    def _put(
        self, job: Callable[[], None], *, now: bool = False, most: int | None = None, full: bool = False
    ) -> bool:
        if len(self._jobs) >= (most or JOBS) or full or self._ended:
            self._refused, self._refused_at = self._refused + 1, time.monotonic()
            return False
        self._jobs.append(job)
        if now or len(self._jobs) == MANY:
            self._wake.set()
        return True

    # in the thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        """Run until the archive is closed. Nothing ends the thread without a reason in `problem`."""
        try:
            self._work()
        except BaseException as error:  # the last resort: the daemon lives on, and reports it
            log.exception("the archive has ended")
            self._ended = (
                f"nothing is written any more: the thread of the archive has ended with {_named(error)}"
            )
            self._jobs.clear()
        finally:
            self._restored.set()

    def _restore(self) -> None:
        try:
            for found in self._history.restore():
                self._found.append(found)
        except AddressError as error:
            log.warning("history is not being kept: %s", error)
            self._unrestored = str(error)
        except OSError as error:
            self._unrestored = f"{self._where.state} cannot be read: {error.strerror}"

    def _work(self) -> None:
        history = self._history
        self._do(self._restore)
        self._do(self._settled.read)
        self._restored.set()
        now = time.monotonic()
        flush_at, tidy_at, summarise_at = now + self._timings.flush_s, now + self._timings.first_tidy_s, now
        while not self._closing:
            self._drain()
            if self._unflushed:  # between two recordings come the jobs that have arrived
                self._do(lambda: history.flush(self._unflushed.popleft()))
                continue
            now = time.monotonic()
            if now >= tidy_at:
                self._do(lambda: history.tidy(time.time()))
                tidy_at = now + TIDY_S
            if now >= summarise_at:
                summarise_at = self._summarise(now) or flush_at
            if now >= flush_at:
                self._unflushed.extend(history.open)
                flush_at = now + self._timings.flush_s
                continue
            until = min(flush_at, tidy_at, summarise_at) if history.open else tidy_at
            self._wake.wait(max(0.0, until - time.monotonic()))
            self._wake.clear()
        while self._jobs:
            self._drain()
        for run in history.open:
            self._do(lambda run=run: history.close(run))  # type: ignore[misc]

    def _summarise(self, began: float) -> float | None:
        """Summarise older rows of one recording. Return when that may be done again, None if none is due."""
        made: list[bool] = []
        self._do(lambda: made.append(self._history.summarise()))
        now = time.monotonic()
        return now + (now - began) * (1 / SUMMARY_SHARE - 1) if any(made) else None

    def _drain(self) -> None:
        for _ in range(len(self._jobs)):
            self._do(self._jobs.popleft())
        urgent, self._urgent = self._urgent, {}
        for run in urgent:  # one flush for a burst
            self._do(lambda run=run: self._history.flush(run))  # type: ignore[misc]

    def _append(self, runs: tuple[str, ...], parts: Sequence[Columns], size_bytes: int) -> None:
        self._bytes_done += size_bytes
        self._history.append(runs, parts)

    def _command(self, record: CommandRecord, *, urgent: bool) -> None:
        self._history.command(record, report=urgent)
        if urgent:
            self._urgent[record.run] = None

    def _do(self, job: Callable[[], object]) -> None:
        try:
            job()
        except Exception as error:
            log.exception("a job of the archive failed")
            self._failed, self._failed_at = self._failed + 1, time.monotonic()
            self._failed_as = _named(error)
        self._done += 1

    def _answer(self, query: Query, live: Sequence[Columns]) -> Buckets | Error:
        """Answer a query in as many buckets as fit into a message."""
        answer = self._in_buckets(query, live)
        while isinstance(answer, Buckets) and (size := len(encode(answer))) > MAX_ANSWER_BYTES:
            points = min(query.points, len(answer.t) // 8) * MAX_ANSWER_BYTES // (size + size // 8)
            if not points:
                text = f"{len(answer.names)} names of {query.source} do not fit into an answer: ask for fewer"
                return Error(code="too_large", text=text, id=query.id)
            query = msgspec.structs.replace(query, points=points)
            answer = self._in_buckets(query, live)
        return answer

    def _in_buckets(self, query: Query, live: Sequence[Columns]) -> Buckets | Error:
        try:
            return self._history.answer(query, live)
        except RecordingError as error:
            if not live:
                return Error(code="no_history", text=error.reason, id=query.id)
            return rows_as_buckets(query, live)


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
