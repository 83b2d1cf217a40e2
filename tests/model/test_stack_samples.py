"""Stack samples between two stamps, of a live run and of a recording."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hoptui.domain.hot_lines import sampled
from hoptui.domain.stacks import StackFrame, StackSamples, pack, unpack
from hoptui.model import stack_samples
from hoptui.model.stack_samples import LiveStacks, RecordedStacks
from hoptui.protocol.messages import RankStacks
from hoptui.recording import Recording
from hoptui.recording.ingest import Boot
from hoptui.recording.stack_minutes import encode, key

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def stack(number: int) -> tuple[StackFrame, ...]:
    return (StackFrame("train.py", "main", number),)


def minute_of(t: int, number: int) -> StackSamples:
    return pack({stack(number): number}, t - MINUTE, t)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five minutes of rank 0, the last of which is damaged, and rank 1 in the third."""
    found = tmp_path / "r.hoptui"
    with Recording.create(found, boot=Boot("b", 10**18, MINUTE)) as recording:
        for number in range(1, 6):
            t = (number + 1) * MINUTE
            parts = {0: [minute_of(t, number)]} | ({1: [minute_of(t, 30)]} if number == 3 else {})
            recording.stacks(t, encode(parts, t), number)
    with sqlite3.connect(found) as db:
        db.execute("UPDATE meta SET value = x'00' WHERE key = ?", (key(6 * MINUTE),))
    db.close()
    return found


def test_a_recording_answers_for_all_of_its_time(path: Path) -> None:
    with Recording.open(path) as recording:
        found = RecordedStacks(recording).between(0, 0)
    assert unpack(found.ranks[0]) == {stack(n): n for n in (1, 2, 3, 4)}
    assert unpack(found.ranks[1]) == {stack(30): 30}
    assert (found.known, found.minutes, found.unreadable, found.skipped) == ((0, 1), 4, 1, 0)
    assert (found.ranks[0].began, found.ranks[0].ended) == (MINUTE, 5 * MINUTE)


def test_a_part_of_the_time_takes_whole_minutes(path: Path) -> None:
    with Recording.open(path) as recording:
        source = RecordedStacks(recording)
        around = source.between(3 * MINUTE + 10 * SECOND, 3 * MINUTE + 20 * SECOND)
        assert unpack(around.ranks[0]) == {stack(3): 3}
        assert (around.ranks[0].began, around.ranks[0].ended) == (3 * MINUTE, 4 * MINUTE)
        both = source.between(3 * MINUTE - SECOND, 3 * MINUTE + SECOND)
        assert unpack(both.ranks[0]) == {stack(2): 2, stack(3): 3}
        assert source.between(1, SECOND).ranks == {}
        assert source.between(100 * MINUTE, 0).ranks == {}


def test_one_rank_alone_and_the_others_by_number(path: Path) -> None:
    with Recording.open(path) as recording:
        found = RecordedStacks(recording).between(0, 0, only=1)
    assert (sorted(found.ranks), found.known) == ([1], (0, 1))


def test_the_last_answer_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Recording.open(path) as recording:
        source = RecordedStacks(recording)
        first = source.between(0, 0)
        monkeypatch.setattr(recording, "minute", pytest.fail)
        assert source.between(0, 0) is first


def test_of_many_minutes_some_are_read_and_the_others_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_samples, "MOST_MINUTES", 2)
    with Recording.open(path) as recording:
        found = RecordedStacks(recording).between(0, 0)
    assert (found.minutes, found.skipped) == (2, 3)
    assert unpack(found.ranks[0]) == {stack(1): 1, stack(4): 4}


def test_the_work_for_one_answer_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_samples, "MOST_FRAMES", 1)
    with Recording.open(path) as recording:
        found = RecordedStacks(recording).between(0, 0)
    assert (found.minutes, found.skipped, found.unreadable) == (2, 3, 0)


def test_a_live_run_is_asked_for_its_last_seconds() -> None:
    asked: list[float] = []

    def fetch(seconds: float) -> tuple[RankStacks, ...]:
        asked.append(seconds)
        return (RankStacks(rank=2, samples=minute_of(10 * MINUTE, 4)),)

    source = LiveStacks(fetch, lambda: 10 * MINUTE)
    found = source.between(10 * MINUTE - 5 * SECOND, 10 * MINUTE)
    assert (sampled(found.ranks[2]), found.known) == (4, (2,))
    source.between(0, 10 * MINUTE)
    assert asked == [5.0, 60.0]
    assert source.between(8 * MINUTE, 8 * MINUTE).ranks == {}
    assert source.between(11 * MINUTE, 12 * MINUTE).ranks == {}
    assert len(asked) == 3
