"""Buffers of rows against plain lists, whatever is appended: rows produced = rows kept + rows dropped."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hoptui.daemon.state import row_buffers
from hoptui.daemon.state.row_buffers import JOINED, Ring
from hoptui.domain.columns import pack
from hoptui.model.series import Series
from hoptui.recording.ingest import Pending

Row = tuple[int, int, dict[str, float]]
SOURCE = "run/r"
MOST_ROWS, MOST_BYTES = 300, 30_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_buffers, "MAX_ROWS", MOST_ROWS)
    monkeypatch.setattr(row_buffers, "MAX_BYTES", MOST_BYTES)


class Buffers(RuleBasedStateMachine):
    """Appends parts of any number of rows and names, and compares all that can be read with a list."""

    @initialize()
    def empty(self) -> None:
        self.made: list[Row] = []
        self.ring, self.series = Ring(SOURCE), Series()
        self.pending = Pending(max_bytes=MOST_BYTES)

    def add(self, rows: list[Row]) -> None:
        self.made += rows
        part = pack(SOURCE, rows)
        assert len(self.ring.append(part)) == len(rows)
        self.pending.add(part)
        known = [(t, s, values.get("v0", math.nan)) for t, s, values in rows]
        self.series.extend(*(list(each) for each in zip(*known, strict=True)))

    @rule(rows=st.integers(1, 5), width=st.sampled_from([0, 1, 40, 400, 2000]), first=st.integers(0, 3))
    def part(self, rows: int, width: int, first: int) -> None:
        t = len(self.made) + 1
        values = {f"v{first + i}": float(t + i) for i in range(width)}
        self.add([(t + i, t + i, values) for i in range(rows)])

    @rule(count=st.sampled_from([JOINED - 1, JOINED, 3 * JOINED]), width=st.sampled_from([1, 3, 30]))
    def singles(self, count: int, width: int) -> None:
        for _ in range(count):
            t = len(self.made) + 1
            self.add([(t, t, {f"v{i}": float(t + i) for i in range(width)})])

    @rule()
    def repeat(self) -> None:
        if self.made:
            assert len(self.ring.append(pack(SOURCE, self.made[-1:]))) == 0

    @invariant()
    def same(self) -> None:
        kept = [row for part in self.ring.parts() for row in part.rows()]
        assert len(kept) + self.ring.dropped == len(self.made)
        assert kept == self.made[self.ring.dropped :]
        assert len(kept) <= MOST_ROWS or len(self.ring.parts()) == 1
        waiting = [row for part in self.pending.rows(SOURCE) for row in part.rows()]
        assert waiting == self.made[self.pending.dropped :]
        known = [values["v0"] for _, _, values in self.made if "v0" in values]
        window = self.series.window(0, len(self.made), len(self.made) + 1)
        seen = [value for value in window.low if not math.isnan(value)]
        assert (seen[:1], seen[-1:]) == (known[:1], known[-1:])
        if not kept:
            return
        assert list(self.ring.newest(3).rows()) == kept[-3:]
        cursor = kept[len(kept) // 2][0]
        found, more = self.ring.since(cursor, 10)
        newer = [row for row in kept if row[0] > cursor]
        assert ([] if found is None else list(found.rows())) == newer[:10]
        assert more == (len(newer) > 10)


@pytest.mark.guarantee("rows-counted")
def test_whatever_is_appended_is_kept_or_counted() -> None:
    machine = Buffers.TestCase
    machine.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
    machine("runTest").runTest()


def test_wide_rows_one_by_one_are_kept_or_counted() -> None:
    """So wide that those which wait to be joined already make room for newer ones."""
    ring = Ring(SOURCE)
    for t in range(1, 4 * JOINED):
        values = {f"v{i}": 1.0 for i in range(60)}
        assert len(ring.append(pack(SOURCE, [(t, t, values)]))) == 1
        assert sum(map(len, ring.parts())) + ring.dropped == t
    assert ring.dropped
