"""A recording against plain lists: rows, events and commands over several writers, boots and readers."""

from __future__ import annotations

import tempfile
from array import array
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hoptui.domain.columns import pack
from hoptui.protocol.messages import CommandRecord, Event
from hoptui.recording import Recording, tables
from hoptui.recording.ingest import Boot
from tests import factories

SECOND = 1_000_000_000
WALL_NS = 1_780_000_000 * SECOND
SOURCES = ("run/r1", "gpu/GPU-0", "host")
Row = tuple[int, int, dict[str, float]]
values = st.dictionaries(st.sampled_from(["loss", "power_w", "busy"]), st.floats(-1e6, 1e6), max_size=3)


class RecordingMachine(RuleBasedStateMachine):
    """`rows` has the rows of each source, `events` and `records` what was said last.

    Stamps are wall time, which only rises, in nanoseconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._small = mock.patch.multiple(tables, ROWS=16, FACTOR=3)
        self._small.start()
        self._directory = tempfile.TemporaryDirectory()
        self.path = Path(self._directory.name) / "r1.hoptui"

    def teardown(self) -> None:
        if hasattr(self, "recording"):
            self.recording.close()
        self._directory.cleanup()
        self._small.stop()

    @initialize()
    def begin(self) -> None:
        self.wall = WALL_NS
        self.rows: dict[str, list[Row]] = {}
        self.events: dict[int, Event] = {}
        self.records: dict[str, CommandRecord] = {}
        self.remembered: dict[str, bytes] = {}
        self.thinned = False
        self.boots = self.number = 0
        self.boot()

    def boot(self) -> None:
        """A writer after a boot of the node: its monotonic clock starts again."""
        self.boots += 1
        self.offset = self.wall - 100 * SECOND
        self.recording = Recording.create(self.path, boot=self.booted())

    def booted(self) -> Boot:
        return Boot(f"boot-{self.boots}", self.offset, self.wall - self.offset)

    def own(self, wall: int) -> int:
        """A stamp on the clock of the writer."""
        return wall - self.offset

    # rules --------------------------------------------------------------------------------------------------

    @rule(
        source=st.sampled_from(SOURCES),
        found=st.lists(values, min_size=1, max_size=40),
        every=st.integers(1, 9),
    )
    def append(self, source: str, found: list[dict[str, float]], every: int) -> None:
        new = []
        for row in found:
            self.wall += every * SECOND
            self.number += 1
            new.append((self.wall, self.number, row))
        self.rows.setdefault(source, []).extend(new)
        self.recording.append(pack(source, [(self.own(t), step, row) for t, step, row in new]))

    @rule(source=st.sampled_from(SOURCES))
    def grow(self, source: str) -> None:
        """So many rows that there are blocks and summaries of blocks."""
        for _ in range(4):
            self.append(source, [{"busy": float(self.number % 97)}] * 40, 1)
            self.recording.flush()

    @precondition(lambda self: self.rows)
    @rule(count=st.integers(1, 20))
    def append_again(self, count: int) -> None:
        for source, known in self.rows.items():
            again = [(self.own(t), step, {"loss": -1.0}) for t, step, _ in known[-count:]]
            self.recording.append(pack(source, again))

    @rule(replaces=st.booleans(), text=st.text(max_size=9))
    def event(self, replaces: bool, text: str) -> None:
        self.number += 1
        seq = max(self.events) if replaces and self.events else self.number
        said = factories.event(seq, "note", text, t=self.own(self.wall), run="r1")
        self.recording.event(said)
        self.events[seq] = _at(said, self.wall)

    @rule(key=st.sampled_from(["c1", "c2", "c3"]), final=st.booleans())
    def command(self, key: str, final: bool) -> None:
        self.number += 1
        t = self.own(self.wall)
        said = factories.record(key, "r1", t=t, seq=self.number, settled=t if final else 0)
        self.recording.command(said)
        self.records[key] = _at(said, self.wall)

    @rule(key=st.sampled_from(["run", "x"]), value=st.binary(max_size=9))
    def remember(self, key: str, value: bytes) -> None:
        self.recording.remember(key, value)
        self.remembered[key] = value

    @rule()
    def flush(self) -> None:
        self.recording.flush()

    @rule(boots=st.booleans())
    def reopen(self, boots: bool) -> None:
        """Another daemon goes on, perhaps after a boot."""
        self.recording.close()
        self.wall += 60 * SECOND
        if boots:
            self.boot()
        else:
            self.recording = Recording.create(self.path, boot=self.booted())

    @rule()
    def thin(self) -> None:
        self.recording.flush()
        self.recording.thin(1)
        self.thinned = self.recording.thinned_before is not None

    @rule()
    def read(self) -> None:
        """Another process reads what is flushed, on the clock of the recording."""
        self.recording.flush()
        with Recording.open(self.path) as reader:
            self.same(reader, reader.wall_offset_ns)

    # invariants ---------------------------------------------------------------------------------------------

    @invariant()
    def same_for_the_writer(self) -> None:
        if hasattr(self, "recording"):
            self.same(self.recording, self.offset)

    def same(self, recording: Recording, offset: int) -> None:
        """Compare everything that can be read with the lists. `offset` makes wall time of its stamps."""
        assert recording.wall_offset_ns == offset
        for source, made in self.rows.items():
            found = [
                (t + offset, step, row) for part in recording.rows(source) for t, step, row in part.rows()
            ]
            kept = made[len(made) - len(found) :]
            assert found == kept
            assert found == made or self.thinned
            self.same_buckets(recording, source, made, offset)
            middle = made[len(made) // 2][0]
            later = [t for part in recording.rows(source, middle - offset) for t in part.times()]
            assert later == [t - offset for t, _, _ in kept if t >= middle]
        extents = recording.sources()
        assert extents.keys() == self.rows.keys()
        assert all(extents[source][1] + offset == made[-1][0] for source, made in self.rows.items())
        assert _records(recording.events(), offset) == sorted(self.events.values(), key=lambda e: e.seq)
        assert _records(recording.commands(), offset) == sorted(self.records.values(), key=lambda r: r.seq)
        assert {key: recording.recall(key) for key in self.remembered} == self.remembered

    def same_buckets(self, recording: Recording, source: str, made: list[Row], offset: int) -> None:
        """No extreme is lost, also where only summaries are left."""
        for name in recording.names(source):
            known = [row[name] for _, _, row in made if name in row]
            for points in (1, 5):
                found = recording.buckets(source, (name,), points=points)
                lows, highs = array("d", found.low[0]), array("d", found.high[0])
                seen = (
                    [value for value in lows if value == value],
                    [value for value in highs if value == value],
                )
                assert len(found.t) // 8 <= points
                if known and not self.thinned:
                    assert (min(seen[0]), max(seen[1])) == (min(known), max(known))
                elif seen[0]:
                    assert min(known) <= min(seen[0]) <= max(seen[1]) <= max(known)


def _at(record: Any, wall: int) -> Any:
    """A record with its stamps in wall time."""
    settled = {"settled": wall} if getattr(record, "settled", 0) else {}
    return type(record)(**{f: getattr(record, f) for f in record.__struct_fields__} | {"t": wall} | settled)


def _records(found: list[Any], offset: int) -> list[Any]:
    return [_at(record, record.t + offset) for record in found]


RecordingMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, derandomize=True
)
TestRecordingMachine = RecordingMachine.TestCase
