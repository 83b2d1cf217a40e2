"""The records of the nodes of one run, exchanged over the store that the ranks already have.

The daemon of each node makes the record of its node once a second, and hands it to the process that
represents the run there. A thread of that process writes it, and reads those of the other nodes. The thread
has a connection of its own. It waits for nothing else, so a store that is slow, full or gone holds up nothing
but the picture of the other nodes. A job on one node has no such thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from hoptui.domain.facts import clean_text
from hoptui.protocol.messages import JobReading, JobReport, StoredRecord
from hoptui.sdk.rank_store import CheckedStore, RankStore, SharingError

AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""How long after a failure the store is connected to again."""
LEAVE_S = 0.3
"""How long the end of a run waits until the head can know that this node has left."""
MOST_SLOTS = 4096
LARGEST = 512 << 10
"""The largest record that is read."""
MESSAGE_BYTES = 512 << 10
"""Records of one message to the daemon."""
LOOKED_AT = 64
"""Ranks of a store without numbers whose records are looked for at a time."""
REPEATED = 10
"""A record that has not changed is returned again by each reading of this number. The one before may not have
reached a daemon, or may have reached one that has ended since."""
OLDEST_S = 2.0
"""A report that has waited for longer is not written. Its daemon makes one a second, and a newer one replaces
it: the daemon is suspended or gone."""
LIVE, LEFT = b"\x01", b"\x00"
"""What a record begins with."""
LONGEST = 200


class NodeRecords:
    """The records of the nodes of one run in its store.

    Each node has a slot. A store with numbers gives the next one to each node that begins to write. In
    another store, it is the rank that writes.

    Args:
        store: The store.
        prefix: Of the keys.
        slot: That of this node, if it has written over an earlier connection, else -1.
    """

    def __init__(self, store: RankStore, prefix: str, slot: int = -1) -> None:
        self._store = CheckedStore(store)
        self._prefix = prefix
        self.slot = slot
        """That of this node, -1 before it has one."""
        self._known: dict[int, bytes] = {}  # by slot, as they were read last
        self._next = 0
        self._readings = 0

    def write(self, record: bytes, *, left: bool = False) -> None:
        """Write the record of this node."""
        store = self._store
        if self.slot < 0:
            self.slot = store.add(f"{self._prefix}nodes", 1) - 1 if store.counts else store.rank
        store.set(self._key(self.slot), (LEFT if left else LIVE) + record)

    def write_head(self, record: bytes) -> None:
        """Write the record of the head."""
        self._store.set(f"{self._prefix}head", record)

    def read_head(self) -> bytes | None:
        """Return the record of the head, None before there is one."""
        return self._store.get(f"{self._prefix}head")

    def read(self) -> list[StoredRecord]:
        """Return the records of the nodes that have changed since the last call. It waits for none.

        Each tenth call returns all of them.
        """
        self._discover()
        self._readings += 1
        again = self._readings % REPEATED == 0
        slots = list(self._known)
        changed = []
        for slot, value in zip(
            slots, self._store.get_there([self._key(slot) for slot in slots]), strict=True
        ):
            if value and (again or value != self._known[slot]) and len(value) <= LARGEST:
                self._known[slot] = value
                changed.append(StoredRecord(slot, value[1:], value[:1] == LEFT))
        return changed

    def _discover(self) -> None:
        """Find slots that have a record by now. One may be taken and not written yet."""
        store = self._store
        if store.counts:
            count = min(store.add(f"{self._prefix}nodes", 0), MOST_SLOTS)
            looked_at = [slot for slot in range(count) if slot not in self._known]
        else:
            turn = range(self._next, min(self._next + LOOKED_AT, store.world))
            self._next = turn.stop if turn.stop < store.world else 0
            looked_at = [slot for slot in turn if slot not in self._known]
        for slot in looked_at[:LOOKED_AT]:
            if store.get(self._key(slot)) is not None:
                self._known[slot] = b""

    def _key(self, slot: int) -> str:
        return f"{self._prefix}node/{slot}"


class JobExchange:
    """The thread that writes and reads records. Its public methods never wait for the store, but `leave`.

    Args:
        store: What the ranks share. A store of torch is connected to again.
        prefix: Of the keys of this run.
        wake: Called in the thread when there is something to `take`.
        failed: Called in the thread when it has a fault, and ends.
    """

    def __init__(
        self,
        store: RankStore,
        prefix: str,
        wake: Callable[[], object],
        failed: Callable[[Exception], object],
    ) -> None:
        self._source, self._prefix = CheckedStore(store), prefix
        self._wake_owner, self._failed = wake, failed
        # the newest, and when it came, until the thread takes it
        self._report: tuple[JobReport, float] | None = None
        self._written: bytes | None = None
        self._leaving = False
        self._event = threading.Event()
        self._readings: deque[JobReading] = deque(maxlen=64)
        self._records: NodeRecords | None = None
        self._slot = -1  # of this node in the store
        self._again_at, self._failures = 0.0, 0
        self._head: bytes | None = None  # the head's record as it was read last
        self._unchanged = 0  # how often it was read since
        self._thread = threading.Thread(target=self._main, name="hoptui-job", daemon=True)
        self._thread.start()

    def report(self, report: JobReport) -> None:
        """Exchange records. A report that is still waiting is replaced: the store is slow."""
        self._report = report, time.monotonic()
        self._event.set()

    def take(self) -> list[JobReading]:
        """Return what was read since the last call."""
        return [self._readings.popleft() for _ in range(len(self._readings))]

    def leave(self, *, in_order: bool) -> None:
        """End the thread. `in_order`: let the head know that this node has left."""
        self._leaving = True
        if not in_order:
            self._written = None
        self._event.set()
        self._thread.join(LEAVE_S)

    # in the thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._leaving:
                self._event.wait()
                self._event.clear()
                waiting, self._report = self._report, None
                if waiting is not None and not self._leaving:
                    self._turn(*waiting)
            if self._records is not None and self._written is not None:
                self._records.write(self._written, left=True)
        except SharingError:  # at the end: the node will be seen as silent
            return
        except Exception as error:
            self._failed(error)

    def _turn(self, report: JobReport, came_at: float) -> None:
        began = time.monotonic()
        if began < self._again_at:
            return
        try:
            found = self._exchange(report, came_at)
            self._failures = 0
        except Exception as error:
            self._records = None
            self._again_at = time.monotonic() + AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
            self._failures += 1
            found = [JobReading(number=report.number, problem=clean_text(_reason(error), LONGEST))]
        took_s = time.monotonic() - began
        for reading in found:
            self._readings.append(_with_time(reading, took_s))
        self._wake_owner()

    def _exchange(self, report: JobReport, came_at: float) -> list[JobReading]:
        records = self._records
        if records is None:
            records = self._records = NodeRecords(self._source.clone(), self._prefix, self._slot)
        record = report.record if time.monotonic() - came_at <= OLDEST_S else None
        if report.head:
            if record is not None:
                records.write_head(record)
            return _parts(report.number, records.read())
        if record is not None:
            try:
                records.write(record)
            finally:
                self._slot = records.slot
            self._written = record
        state = records.read_head() if report.read else None
        if state is None or len(state) > LARGEST:
            return [JobReading(number=report.number)]
        self._unchanged = self._unchanged + 1 if state == self._head else 0
        self._head = state
        new = self._unchanged % REPEATED == 0
        return [JobReading(number=report.number, state=state if new else None)]


def _parts(number: int, found: list[StoredRecord]) -> list[JobReading]:
    """Return records as messages that are not too large, at least one."""
    parts: list[list[StoredRecord]] = [[]]
    size = 0
    for record in found:
        if parts[-1] and size + len(record.record) > MESSAGE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(record)
        size += len(record.record)
    return [JobReading(number=number, nodes=tuple(part)) for part in parts]


def _with_time(reading: JobReading, took_s: float) -> JobReading:
    return JobReading(
        number=reading.number,
        problem=reading.problem,
        nodes=reading.nodes,
        state=reading.state,
        took_s=took_s,
    )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SharingError) else f"{type(error).__name__}: {error}"
