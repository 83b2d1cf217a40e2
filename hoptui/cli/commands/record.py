"""`hoptui record`: record the GPUs and the host of this node without a run."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import structs

from hoptui.cli.support import recordings
from hoptui.cli.support.options import Force
from hoptui.cli.support.snapshot import NONE, NodeSnapshot, look
from hoptui.cli.support.terminal import MISSING, OK, REJECTED, Fail, say, target, usage, warn
from hoptui.domain.columns import Columns, pack
from hoptui.domain.pacing import MOST_HZ, sampling_hz
from hoptui.node.addresses import AddressError, addresses
from hoptui.presentation import numbers, sentences
from hoptui.protocol.messages import Delta
from hoptui.protocol.recorded_processes import encode_processes
from hoptui.recording import Recording, RecordingError, library
from hoptui.recording.process_snapshots import ProcessSnapshots
from hoptui.recording.timed_states import PROCESSES

SECOND = 1_000_000_000
SHORTEST_S, LONGEST_S = 1 / MOST_HZ, 3600.0
POLL_S = 0.5
FLUSH_S = 1.0
SLACK = 0.1
"""Share of the interval by which a row may be early: ticks are not exact."""
HOST = "host"


def record(
    *,
    output: Annotated[
        str,
        Parameter(
            name=("--output", "-o"),
            allow_leading_hyphen=True,
            help="The recording to write, such as node.hoptui.",
        ),
    ],
    seconds: Annotated[
        float | None, Parameter(show_default=False, help="End after so many seconds instead of at Ctrl-C.")
    ] = None,
    interval: Annotated[float, Parameter(help="Seconds between two rows of a GPU.")] = 1.0,
    force: Force = False,
) -> int:
    """Record the GPUs and the host of this node without a run, until Ctrl-C.

    `hoptui replay FILE` shows the recording, `hoptui export FILE` writes its rows.
    """
    if not (math.isfinite(interval) and SHORTEST_S <= interval <= LONGEST_S):
        raise usage(f"--interval must be {SHORTEST_S:g} to {LONGEST_S:g} seconds, not {interval:g}")
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise usage(f"--seconds must be more than 0, not {seconds:g}")
    path = _new(output, force=force)
    with _ends_at_signals():
        rows = _recorded(path, interval, math.inf if seconds is None else seconds)
    if not rows:
        raise Fail(f"{path} was not written: there were no readings", MISSING)
    say(f"{path}: {numbers.grouped(rows)} rows, {recordings.size(path.stat().st_size)}")
    return OK


def _new(output: str, *, force: bool) -> Path:
    """The file to write. With `force`, one that is there is deleted. Raises Fail."""
    if output == "-":
        raise usage("a recording is a file: give --output FILE, such as node.hoptui")
    path = target(output, force=force)
    assert path is not None
    with contextlib.suppress(AddressError):
        state = addresses(create=False).state
        if path.absolute().parent.resolve() == state.resolve():
            raise Fail(f"{state} is for recordings of runs: give a name in another directory", REJECTED)
    if path.exists():
        try:
            with Recording.open(path):
                pass  # only a recording is deleted
            library.remove(path)
        except RecordingError as error:
            raise Fail(f"{error}; it is not overwritten", REJECTED) from None
    return path


@contextlib.contextmanager
def _ends_at_signals() -> Iterator[None]:
    """SIGTERM ends a recording as Ctrl-C does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _recorded(path: Path, interval: float, seconds: float) -> int:
    """Record for so many seconds or until Ctrl-C; returns the number of rows. Without one, no file is
    left.
    """
    try:
        writer = _Writer(Recording.create(path), interval)
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _record(path, writer, interval, seconds)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # another Ctrl-C must not cut the end off
            signal.signal(number, signal.SIG_IGN)
        try:
            writer.close()
            if not writer.rows:
                library.remove(path)
        except RecordingError as error:
            raise Fail(str(error), REJECTED) from None
    return writer.rows


def _record(path: Path, writer: _Writer, interval: float, seconds: float) -> None:
    """Record for so many seconds from the first connection on; goes on with a new daemon when one is gone."""
    end: float | None = None
    while end is None or time.monotonic() < end:
        before = writer.rows
        try:
            with look() as seen:
                if seen.session.started_daemon:
                    seen.await_readings()
                _tell(path, seen)
                end = time.monotonic() + seconds if end is None else end
                _follow(seen, writer, interval, end)
        except Fail as fail:
            if fail.code != MISSING or writer.rows == before:
                raise
            warn(f"hoptui: {fail}; connecting again")


def _tell(path: Path, seen: NodeSnapshot) -> None:
    if not any(not gpu.problem for gpu in seen.node.gpus):
        why = sentences.text_of(seen.node.gpu_problem) or sentences.joined(seen.node.sampler_problems)
        warn(f"hoptui: no GPU readings: {why or 'no GPU can be read'}; the host is recorded")
    warn(f"hoptui: recording {seen.node.host} into {path}; Ctrl-C ends it")


def _follow(seen: NodeSnapshot, writer: _Writer, interval: float, end: float) -> None:
    """Write what is new, until `end`."""
    writer.node(seen)
    events = max((event.seq for event in seen.store.events), default=0)
    cursors: dict[str, int] = {}
    state = processes = 0
    hz = sampling_hz(interval)
    start = seen.store.now()
    flush_at = 0.0
    while True:
        for source in (HOST, *(f"gpu/{gpu.uuid}" for gpu in seen.node.gpus)):
            cursors.setdefault(source, start)
        delta = seen.session.fetch(
            cursors=cursors, events=events, commands=NONE, state=state, hz=hz, processes=processes
        )
        seen.store.apply(delta)
        state, processes = delta.state, delta.processes_version
        cursors |= {part.source: part.last_t for part in delta.columns if len(part)}
        events = max([events, *(event.seq for event in delta.events)])
        writer.add(delta)
        if delta.node is not None:
            writer.node(seen)
        writer.processes(seen)
        now = time.monotonic()
        if now >= flush_at:
            writer.flush()
            flush_at = now + FLUSH_S
        if delta.more:
            continue
        if now >= end:
            return
        time.sleep(max(0.0, min(POLL_S, interval, end - now)))


class _Writer:
    """Rows, events and the node into a recording; rows that come faster than `interval` seconds are merged.

    A merged row has the newest value of each reading since the row before.
    """

    def __init__(self, recording: Recording, interval: float) -> None:
        self._recording = recording
        self._spacing = round(interval * (1 - SLACK) * SECOND)
        self._last: dict[str, int] = {}
        self._waiting: dict[str, dict[str, float]] = {}
        self._node = b""
        self._snapshots = ProcessSnapshots()
        self._events = 0
        self.rows = 0

    def add(self, delta: Delta) -> None:
        """Take over rows of the GPUs and the host, and events of the node."""
        for part in delta.columns:
            if part.source == HOST or part.source.startswith("gpu/"):
                self._rows(part)
        for event in delta.events:
            if not event.run:  # numbered anew: another daemon counts from the start
                self._events += 1
                self._recording.event(structs.replace(event, seq=self._events))

    def node(self, seen: NodeSnapshot) -> None:
        """Store the node as it is now."""
        raw = library.encode_node(seen.node)
        if raw != self._node:
            self._node = raw
            self._recording.remember(library.NODE, raw)

    def processes(self, seen: NodeSnapshot) -> None:
        """Store the processes on the GPUs if they are due."""
        t, found = seen.store.now(), seen.store.processes
        if seen.node.gpus and self._snapshots.due(t, (), found):
            self._recording.state(PROCESSES, t, encode_processes(found))

    def flush(self) -> None:
        """Write to the disk. Raises Fail."""
        try:
            self._recording.flush()
        except RecordingError as error:
            raise Fail(str(error), REJECTED) from None

    def close(self) -> None:
        """Write what waits, and close. Raises RecordingError."""
        self._recording.close()

    def _rows(self, part: Columns) -> None:
        waiting = self._waiting.setdefault(part.source, {})
        kept: list[tuple[int, int, dict[str, float]]] = []
        for t, _, values in part.rows():
            waiting.update(values)
            last = self._last.get(part.source)
            if last is None or t - last >= self._spacing:
                kept.append((t, -1, dict(waiting)))
                waiting.clear()
                self._last[part.source] = t
        if kept:
            self.rows += len(kept)
            self._recording.append(pack(part.source, kept))
