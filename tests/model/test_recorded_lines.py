"""Where the time of a recorded run went: around a moment, and from its start up to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hoptui.domain.line_counts import FoundLines
from hoptui.domain.stacks import StackFrame, StackSamples, pack
from hoptui.model.recorded import lines
from hoptui.model.recorded.lines import AROUND_NS, RecordedLines
from hoptui.protocol.ranges import MOST_STAMP
from hoptui.recording import Recording
from hoptui.recording.ingest import Boot
from hoptui.recording.stack_minutes import encode, key

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def minute_of(t: int, number: int) -> StackSamples:
    return pack({(StackFrame("train.py", "main", number),): 10 * number}, t - MINUTE, t)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Minutes that end at 2, 3, 4, 10, 11 minutes; the last is damaged, and rank 1 is in that of 4."""
    found = tmp_path / "r.hoptui"
    with Recording.create(found, boot=Boot("b", 10**18, MINUTE)) as recording:
        for number, end in enumerate((2, 3, 4, 10, 11), 1):
            t = end * MINUTE
            parts = {0: [minute_of(t, number)]} | ({1: [minute_of(t, 30)]} if end == 4 else {})
            recording.stacks(t, encode(parts, t), number)
    with sqlite3.connect(found) as db:
        db.execute("UPDATE meta SET value = x'00' WHERE key = ?", (key(11 * MINUTE),))
    db.close()
    return found


def at(found: FoundLines) -> dict[int, dict[int, int]]:
    """The samples of each line, by rank."""
    return {rank: {one.line: one.samples for one in counts.lines} for rank, counts in found.ranks.items()}


def test_the_minute_around_a_moment(path: Path) -> None:
    recorded = RecordedLines(path)
    assert at(recorded.around(2 * MINUTE + SECOND)) == {0: {2: 20}}
    assert at(recorded.around(4 * MINUTE)) == {0: {3: 30}, 1: {30: 300}}
    assert at(recorded.around(4 * MINUTE + 10 * SECOND)) == {0: {3: 30}, 1: {30: 300}}, "the last one before"
    assert at(recorded.around(6 * MINUTE)) == {}, "a gap"
    assert recorded.around(10 * MINUTE + SECOND).unreadable == 1
    assert at(recorded.around(20 * MINUTE)) == at(recorded.around(1)) == {}


@pytest.mark.parametrize("whole", [False, True])
def test_an_answer_holds_for_all_of_its_stamps_and_none_other(path: Path, whole: bool) -> None:
    moments = sorted(
        {n * MINUTE + d for n in range(1, 13) for d in (-1, 0, 1, 30 * SECOND)} | {1, 5 * MINUTE + AROUND_NS}
    )

    def answer(t: int) -> FoundLines:
        recorded = RecordedLines(path)
        return recorded.upto(t) if whole else recorded.around(t)

    found = {t: answer(t) for t in moments}
    for t, one in found.items():
        assert one.t0 <= t <= one.t1
        for other in moments:
            if one.t0 <= other <= one.t1:
                assert (at(found[other]), found[other].unreadable) == (at(one), one.unreadable), (t, other)


def test_the_whole_time_ends_at_the_moment_and_is_read_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def minute(recording: Recording, t: int, real: object = Recording.minute) -> object:
        read.append(t // MINUTE)
        return real(recording, t)  # type: ignore[operator]

    monkeypatch.setattr(Recording, "minute", minute)
    recorded = RecordedLines(path)
    assert at(recorded.upto(2 * MINUTE + SECOND)) == {0: {1: 10, 2: 20}}
    assert read == [2, 3]
    assert at(recorded.upto(5 * MINUTE)) == {0: {1: 10, 2: 20, 3: 30}, 1: {30: 300}}
    end = recorded.upto(20 * MINUTE)
    assert at(end) == {0: {1: 10, 2: 20, 3: 30, 4: 40}, 1: {30: 300}}
    assert (end.unreadable, end.skipped, end.t1) == (1, 0, MOST_STAMP)
    assert read == [2, 3, 4, 10, 10, 11], "the one after the gap is looked at twice"
    assert at(recorded.upto(MINUTE + SECOND)) == {0: {1: 10}}, "back"


def test_a_long_recording_is_read_in_part_and_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_MINUTES", 3)
    found = RecordedLines(path).upto(20 * MINUTE)
    assert at(found) == {0: {1: 10, 3: 30}, 1: {30: 300}}
    assert (found.skipped, found.unreadable) == (2, 1)
