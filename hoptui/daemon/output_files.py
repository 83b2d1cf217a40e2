"""Reads the regular files that stdout and stderr of runs go to, when a viewer asks.

The files are opened through `/proc/<pid>/fd` while the process lives, so that the last lines can be read
after its end. Nothing is done to the process or to its descriptors. A file system may hang, so a thread does
all of it. Terminals and pipes are not opened: what is read from them would be missing for their reader.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from hoptui.daemon import descriptors
from hoptui.domain.outputs import PAGE_BYTES, TAIL_BYTES, OutputPart, StreamName, StreamOrigin
from hoptui.node.processes import process_started, process_state
from hoptui.protocol.messages import FetchOutput, RunOutput

log = logging.getLogger("hoptui.daemon")

MOST_FILES = 512
"""Files that are held open, for all runs."""
MOST_TAIL_BYTES = 32 << 20
"""Memory for the last parts of files of processes that have ended. The oldest are dropped."""
SPARE_DESCRIPTORS = 64
"""Files are not opened with fewer free descriptors than this above what runs and viewers need."""
STUCK_S = 3.0
"""A file system that takes longer does not answer."""
WAITING = 64
"""Requests that wait for the thread. More are answered without output."""
STREAMS: Mapping[int, StreamName] = {1: "stdout", 2: "stderr"}

Owner = tuple[str, int]
"""The id of a run and a rank."""


class Stream(NamedTuple):
    """Where a descriptor of a process goes to. `file` is a descriptor of this process, -1 for none."""

    origin: StreamOrigin
    source: str = ""
    path: str = ""
    file: int = -1


class Followed:
    """A process whose streams are known. Once it has ended, `tails` has the last part of each file."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.started = process_started(pid)
        self.streams: dict[int, Stream] = {}
        self.tails: dict[str, OutputPart] | None = None

    @property
    def lives(self) -> bool:
        """Whether it is the process that it was, and still has files: a pid may be used again."""
        if self.started is None or process_started(self.pid) != self.started:
            return False
        return process_state(self.pid) not in ("Z", "X", "")


class OutputFiles:
    """Follows processes in a thread. `reply` is called there, with the viewer that asked and the answer."""

    def __init__(self, reply: Callable[[bytes, RunOutput], None]) -> None:
        self._reply = reply
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._began: float | None = None  # when the job that runs now began
        self._thread: threading.Thread | None = None
        self._wanted: Mapping[Owner, int] = {}
        self._lingering = False  # whether a process that is not followed any more has not ended yet
        # of the thread alone:
        self._known: dict[Owner, Followed] = {}

    def follow(self, live: Mapping[Owner, int], known: Collection[str]) -> None:
        """Follow these live processes, by their pids, and no other. `known` are the runs to remember."""
        if (live != self._wanted or self._lingering) and not self.stuck:
            self._wanted = wanted = dict(live)
            kept = frozenset(known)
            self._submit(lambda: self._follow(wanted, kept))

    def ask(self, identity: bytes, asked: FetchOutput, copied: Collection[OutputPart]) -> None:
        """Answer a viewer, from the thread. `copied` are the parts that the process has sent."""
        answer = RunOutput(id=asked.id, run=asked.run, rank=asked.rank, parts=tuple(copied))
        if self.stuck or self._jobs.qsize() >= WAITING:
            self._reply(identity, structs.replace(answer, problem="no_answer"))
            return
        self._submit(lambda: self._reply(identity, self._answered(asked, answer)))

    @property
    def stuck(self) -> bool:
        """Whether a file system keeps the thread."""
        began = self._began
        return began is not None and time.monotonic() - began > STUCK_S

    def close(self) -> None:
        """End the thread, unless a file system keeps it."""
        self._jobs.put(None)

    def _submit(self, job: Callable[[], None]) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._began = None
            self._thread = threading.Thread(target=self._work, name="hoptui-output", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    # in the thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._began = time.monotonic()
            try:
                job()
            except Exception:  # a fault costs one look
                log.exception("the output of a run could not be looked at")
            self._began = None
        for followed in self._known.values():
            _release(followed)

    def _follow(self, live: Mapping[Owner, int], known: Collection[str]) -> None:
        for owner, pid in live.items():
            followed = self._known.get(owner)
            if followed is None or followed.pid != pid or not followed.lives:
                if followed is not None:
                    self._end(followed)
                self._known[owner] = followed = Followed(pid)
                self._look(followed)
        for owner in list(self._known):
            if owner[0] not in known:
                _release(self._known.pop(owner))
        self._drop_old(live)

    def _answered(self, asked: FetchOutput, answer: RunOutput) -> RunOutput:
        try:
            return self._with_files(asked, answer)
        except Exception:  # the viewer must get an answer
            log.exception("the output of a run could not be read")
            return structs.replace(answer, problem="failed")

    def _with_files(self, asked: FetchOutput, answer: RunOutput) -> RunOutput:
        followed = self._known.get((asked.run, asked.rank))
        parts = answer.parts
        if followed is not None:
            if followed.lives:
                self._look(followed)
            else:
                self._end(followed)
            parts = _together(_parts(followed, asked.since), parts)
        ranks = sorted(rank for run, rank in self._known if run == asked.run)
        return structs.replace(answer, parts=parts, ranks=tuple(ranks))

    def _look(self, followed: Followed) -> None:
        """Open what the streams of a living process go to now."""
        for number in STREAMS:
            found = self._stream(followed, number)
            before = followed.streams.get(number)
            if before is not None and before.file >= 0 and before.file != found.file:
                os.close(before.file)
            followed.streams[number] = found

    def _stream(self, followed: Followed, number: int) -> Stream:
        place = Path(f"/proc/{followed.pid}/fd/{number}")
        before = followed.streams.get(number)
        try:
            status = place.stat()
            if not stat.S_ISREG(status.st_mode):
                return Stream(_kind(status.st_mode, place))
            source = f"{status.st_dev}:{status.st_ino}"
            path = str(place.readlink())
            if before is not None and before.file >= 0 and before.source == source:
                return before._replace(path=path)
            if not self._room:
                return Stream("unknown", source, path)
            file = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            if not followed.lives:
                return before or Stream("unknown")
            return Stream("closed" if isinstance(error, FileNotFoundError) else "unreadable")
        opened = os.fstat(file)
        if f"{opened.st_dev}:{opened.st_ino}" != source or not followed.lives:  # it was replaced meanwhile
            os.close(file)
            return Stream("unknown")
        return Stream("file", source, path, file)

    @property
    def _room(self) -> bool:
        held = sum(stream.file >= 0 for one in self._known.values() for stream in one.streams.values())
        return held < MOST_FILES and descriptors.free() >= descriptors.REFUSE + SPARE_DESCRIPTORS

    def _end(self, followed: Followed) -> None:
        """Keep the last part of each file of a process that has ended, and close the files."""
        if followed.tails is None:
            files = {one.source: one for one in followed.streams.values() if one.file >= 0}
            followed.tails = {source: _read(one, 0, TAIL_BYTES) for source, one in files.items()}
            _release(followed)

    def _drop_old(self, live: Collection[Owner]) -> None:
        """Let go of processes that have ended, and drop the oldest tails that take too much memory."""
        used, lingering = 0, False
        for owner, followed in reversed(list(self._known.items())):
            if followed.tails is None and not followed.lives:
                self._end(followed)
            lingering = lingering or (owner not in live and followed.tails is None)
            used += sum(len(part.data) for part in (followed.tails or {}).values())
            if used > MOST_TAIL_BYTES and followed.tails:
                del self._known[owner]
        self._lingering = lingering


def _kind(mode: int, place: Path) -> StreamOrigin:
    if stat.S_ISCHR(mode):
        return (
            "terminal"
            if str(place.readlink()).startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
            else "discarded"
        )
    return "pipe"


def _release(followed: Followed) -> None:
    for number, stream in followed.streams.items():
        if stream.file >= 0:
            os.close(stream.file)
            followed.streams[number] = stream._replace(file=-1)


def _parts(followed: Followed, since: Mapping[str, int]) -> list[OutputPart]:
    """Return a page of each stream, from the offset on that the viewer has of its source."""
    one, other = followed.streams[1], followed.streams[2]
    shared = bool(one.source) and one.source == other.source
    chosen: list[tuple[StreamName, Stream]] = [("output", one)] if shared else []
    chosen = chosen or [(name, followed.streams[number]) for number, name in STREAMS.items()]
    return [_part(followed, name, stream, since.get(stream.source, 0)) for name, stream in chosen]


def _part(followed: Followed, name: StreamName, stream: Stream, since: int) -> OutputPart:
    found = OutputPart(stream=name, origin=stream.origin, source=stream.source, path=stream.path)
    if stream.origin != "file":
        return found
    if stream.file >= 0:
        return structs.replace(_read(stream, since, PAGE_BYTES), stream=name)
    tail = (followed.tails or {}).get(stream.source, found)
    start = since if tail.start <= since <= tail.end else tail.start
    data = tail.data[start - tail.start :][:PAGE_BYTES]
    return structs.replace(tail, stream=name, start=start, data=data)


def _read(stream: Stream, since: int, most: int) -> OutputPart:
    """Return at most so many bytes of an open file, of its last `TAIL_BYTES`."""
    try:
        end = os.fstat(stream.file).st_size
        start = max(0, end - TAIL_BYTES, since if since <= end else 0)
        data = os.pread(stream.file, most, start)
    except OSError:
        return OutputPart(stream="output", origin="unreadable", source=stream.source, path=stream.path)
    end = max(end, start + len(data))
    return OutputPart(
        stream="output",
        origin="file",
        source=stream.source,
        path=stream.path,
        start=start,
        end=end,
        data=data,
    )


def _together(read: list[OutputPart], copied: Collection[OutputPart]) -> tuple[OutputPart, ...]:
    """Return the parts of files, and what the process has copied in place of streams that are not read."""
    if not copied:
        return tuple(read)
    names = {part.stream for part in copied}
    files = [part for part in read if part.origin == "file" or not (names & {"output", part.stream})]
    return (*files, *copied)
